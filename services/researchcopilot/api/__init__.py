"""The api: accepts runs over HTTP and answers what became of them. It executes nothing.

Every route is an `Operation` in the table of its noun (`runs.py`, `sessions.py`, …). One table
says the method, the path, what a body and a query may hold and what comes back; it routes,
validates and is published as `/openapi.json`, so the description cannot drift from the code.

A request must never take more than one database connection at a time, never hold one while it
waits, and never leave half a run: everything it writes is one member of a group that commits as
a whole. What it refuses, it refuses as an RFC 9457 problem with the field and the limit named.
"""

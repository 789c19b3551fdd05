"""The only door to the servers: Postgres is the truth, Redis a hint that can be rebuilt.

No other room imports psycopg or redis. Every move of a run is one guarded statement that is safe
to send twice; every Redis move is one command or one Lua script. SQL is static and named, in
`sql/`; Lua is one file a verb, in `lua/`.
"""

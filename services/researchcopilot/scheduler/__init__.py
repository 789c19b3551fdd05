"""The scheduler: what the clock starts. Several are harmless; none is a single point of failure.

`due` moves delayed entries whose time has come to their queue, by one script with Redis' own clock.
`ticks` fires schedules, in one transaction with the database's clock. Both sleep until the next
thing is due, and `wakes` rings when there is something earlier. The clock of this process only
says how long to sleep: one that is wrong makes things late for a moment, never early or twice.
"""

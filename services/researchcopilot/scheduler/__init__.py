"""The scheduler: what the clock starts. Several are harmless; none is a single point of failure.

First duty: entries whose time has come go from the delayed set to their queue, by one script with
Redis' own clock. Schedules are not here yet.
"""

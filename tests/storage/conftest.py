"""The fixtures of tests about locks: a server, and locks on it."""

from tests.storage.lock_servers import locks, server

__all__ = ["locks", "server"]

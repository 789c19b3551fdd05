"""What a part looks at before it starts: are these servers fit for it?

What cannot heal by itself (too old) is a ConfigError: the part stops and says why. What may heal (a
replica that will be promoted, a Postgres in recovery) is Unavailable: the part waits and says so.
An eviction policy that throws keys away is a warning: no run is lost by it, but pushes are.
"""

import logging

from researchcopilot.core.errors import ConfigError, Unavailable
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.sql import load

_SQL = load("checks")
OLDEST_POSTGRES = 140_000
log = logging.getLogger(__name__)


async def check_postgres(db: Database) -> None:
    """Raises ConfigError (too old) or Unavailable (not there, read-only)."""
    await db.reach()
    [(version, number, read_only)] = await db.rows(_SQL["server"])
    if number < OLDEST_POSTGRES:
        raise ConfigError(
            f"Postgres {version} is too old: 14 or newer is needed. Point RC_DATABASE_URL at one."
        )
    if read_only:
        raise Unavailable(
            "this Postgres is read-only: a standby, or default_transaction_read_only is on. "
            "Point RC_DATABASE_URL at the primary"
        )


async def check_redis(redis: Queue) -> None:
    """Raises ConfigError (no LMOVE) or Unavailable (a replica); warns of an eviction policy."""
    facts = await redis.facts()
    if not facts.has_lmove:
        raise ConfigError(
            f"Redis {facts.version} has no LMOVE: Redis 6.2 or Valkey 7.2 or newer is needed. "
            "Point RC_REDIS_URL at one."
        )
    if facts.role != "master":
        raise Unavailable(
            f"this Redis is a {facts.role}, which refuses writes. Point RC_REDIS_URL at the primary"
        )
    if facts.eviction not in (None, "noeviction"):
        log.warning(
            "Redis throws keys away when its memory is full (maxmemory-policy %s). No run is lost "
            "by that, but queues have to be mended again and again: set it to noeviction.",
            facts.eviction,
        )

"""One way of telling that Redis went away: whatever it raises becomes Unavailable.

What it refuses is counted by its own word for it: nobody sees from outside that a server which
answers has no room, is a replica, or cannot write to its disk.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Counter
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from researchcopilot.core.errors import LoginRefused, Unavailable

# Redis' words for "not now"; whatever else it says counts as other, since texts are without end.
WORDS = {
    "OOM", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY",
    "NOPERM", "NOAUTH", "WRONGPASS",
}  # fmt: skip
REFUSALS = Counter(
    "researchcopilot_redis_refusals_total", "Commands that Redis answered and refused", ["why"]
)
for _known in (*WORDS, "other"):  # from 0: a series that is born at 1 hides the first
    REFUSALS.labels(_known.lower())
# How uvloop says that the other side has reset a connection that the client still thinks good.
_RESET = "the handler is closed"


@asynccontextmanager
async def told() -> AsyncIterator[None]:
    try:
        yield
    except ResponseError as error:
        # LOADING, READONLY, OOM, MISCONF …: up, but of no use now. A wrong type is a real fault.
        if str(error).startswith("WRONGTYPE"):
            raise
        REFUSALS.labels(_word(error)).inc()
        raise Unavailable(f"Redis refuses: {error}") from error
    except RuntimeError as error:
        if not str(error).endswith(_RESET):
            raise
        raise Unavailable("Redis does not answer: the connection was reset") from error
    except AuthenticationError as error:
        raise LoginRefused(
            f"Redis refuses the login ({error}): put the name and password in RC_REDIS_URL right"
        ) from error
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(f"Redis does not answer: {str(error) or type(error).__name__}") from error


def _word(error: ResponseError) -> str:
    """oom, readonly, …: the client takes the word away from the texts of those that it knows."""
    word = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    return word.lower() if word in WORDS else "other"

"""One way of telling that Redis went away: whatever it raises becomes Unavailable."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import RedisError, ResponseError

from researchcopilot.core.errors import Unavailable

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
        raise Unavailable(f"Redis refuses: {error}") from error
    except RuntimeError as error:
        if not str(error).endswith(_RESET):
            raise
        raise Unavailable("Redis does not answer: the connection was reset") from error
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(f"Redis does not answer: {str(error) or type(error).__name__}") from error

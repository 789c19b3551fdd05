"""API keys: `Authorization: Bearer rc_…`. A key belongs to one workspace and is all it can see.

Keys are looked up by their SHA-256 and remembered for `REMEMBER_S`, also those that nobody knows,
so that a busy client costs no query a request. What that means: a revoked key is refused at the
latest 5 seconds after its revocation committed, in every process; a new key works at once unless
it was tried before it existed (then within 5 seconds).
"""

import asyncio
import hashlib
import re
import time

from starlette.types import Scope

from researchcopilot.api.bodies import header
from researchcopilot.api.problems import Problem
from researchcopilot.storage import keys
from researchcopilot.storage.db import Database

REMEMBER_S = 5.0
MOST = 10_000
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE | re.ASCII)


class Keys:
    """Whose key is it? One lookup at a time for a key, however many requests carry it."""

    def __init__(self, db: Database, remember_s: float = REMEMBER_S) -> None:
        self._db = db
        self._remember_s = remember_s
        self._known: dict[bytes, tuple[int | None, float]] = {}
        self._asking: dict[bytes, asyncio.Task[int | None]] = {}

    async def workspace_of(self, scope: Scope) -> int:
        """The workspace of the request's key. Raises a 401 problem."""
        given = header(scope, b"authorization")
        if given is None:
            raise _unauthorized("Send an API key: Authorization: Bearer rc_…", None)
        bearer = _BEARER.fullmatch(given)
        if bearer is None or not keys.looks_like_key(bearer[1]):
            raise _unauthorized(
                "Authorization must be `Bearer rc_…`, with a key as `researchcopilot keys create` "
                "printed it.",
                "invalid_request",
            )
        digest = hashlib.sha256(bearer[1].encode()).digest()
        known = self._known.get(digest)
        if known is None or known[1] < time.monotonic():
            workspace_id = await self._ask(digest)
        else:
            workspace_id = known[0]
        if workspace_id is None:
            raise _unauthorized("This API key is unknown or was revoked.", "invalid_token")
        return workspace_id

    async def _ask(self, digest: bytes) -> int | None:
        task = self._asking.get(digest)
        if task is None:
            task = asyncio.create_task(self._look_up(digest))
            self._asking[digest] = task
            task.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Shielded: a caller that is cancelled must not take the others' answer with it.
        return await asyncio.shield(task)

    async def _look_up(self, digest: bytes) -> int | None:
        asked_at = time.monotonic()  # before the query: the five seconds are counted from there
        workspace_id = await keys.find(self._db, digest)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[digest] = (workspace_id, asked_at + self._remember_s)
        return workspace_id


def _unauthorized(detail: str, error: str | None) -> Problem:
    challenge = 'Bearer realm="researchcopilot"' + (f', error="{error}"' if error else "")
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": challenge})

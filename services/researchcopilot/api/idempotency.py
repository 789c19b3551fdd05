"""Idempotency-Key: one request, however often it is sent, makes its runs once.

The guarantee is a unique key in Postgres, written in the same commit as the runs; here the header
is read and the body named by its hash. A key is remembered for its workspace and route, so that
no workspace can meet another one's keys (draft-ietf-httpapi-idempotency-key-header).
"""

import hashlib
import json
import re

from researchcopilot.api.operations import Call
from researchcopilot.api.problems import Fault, refuse
from researchcopilot.core.models import IdempotencyKey

HEADER = "Idempotency-Key"
_BARE = re.compile(r"[!#-\[\]-~]{1,255}")
_QUOTED = re.compile(r'"((?:[!#-\[\]-~]|\\["\\]){1,510})"')


def read_key(text: str) -> str | None:
    """The key in a header: bare, or a string of structured fields (RFC 8941 §3.3.3)."""
    text = text.strip(" \t")
    if _BARE.fullmatch(text):
        return text
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return None
    key = re.sub(r"\\(.)", r"\1", quoted[1])
    return key if len(key) <= 255 else None


def of_call(call: Call) -> IdempotencyKey | None:
    """The key of this request, None if it carries none.

    Its hash covers what the client sent, not what we made of it: a later version of this code
    that knows one more field must still recognise a repetition.
    """
    given = call.header(b"idempotency-key")
    if given is None:
        return None
    key = read_key(given)
    if key is None:
        message = 'must be 1 to 255 visible ASCII characters, bare or in "quotes"'
        raise refuse([Fault(HEADER, message)])
    operation = call.operation
    said = [call.path, call.said]
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return IdempotencyKey(
        workspace_id=call.workspace_id,
        route=f"{operation.method} {operation.path}",
        key=key,
        body_hash=hashlib.sha256(canonical.encode()).hexdigest(),
    )

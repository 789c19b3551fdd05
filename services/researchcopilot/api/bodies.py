"""Bodies: read with a limit, parsed once, checked by a table of fields.

Nothing here trusts Content-Length: what arrives is counted. JSON that the standard library would
wave through is marked while it is parsed (a key twice, NaN, numbers that do not survive a round
trip) and refused with its path by whoever checks the field.
"""

import asyncio
import json
from typing import Any

from starlette.types import Receive, Scope

from researchcopilot.api.problems import ClientGone, Fault, Problem, refuse
from researchcopilot.core.schemas import Flaw

# A body that is on its way may take so long; it costs nothing but a connection meanwhile.
BODY_SECONDS = 60.0
# What is larger is understood in a thread.
SLOW_BYTES = 100_000
UTF_8 = ("utf-8", "utf8", "us-ascii")


def header(scope: Scope, name: bytes) -> str | None:
    """A request header, or None. Two of one name are refused: which one would count?"""
    found: bytes | None = None
    for key, value in scope["headers"]:
        if key == name:
            if found is not None:
                raise refuse([Fault(_title(name), "must not be given twice")])
            found = value
    return None if found is None else found.decode("latin-1")


def _title(name: bytes) -> str:
    return name.decode().title()


def media_type(scope: Scope, *allowed: str, charsets: tuple[str, ...] = UTF_8) -> str:
    """The body's media type, one of `allowed`; the first if none is given."""
    given = header(scope, b"content-type")
    if given is None or given == allowed[0]:
        return _uncompressed(scope, allowed[0])
    name, *parameters = (part.strip().lower() for part in given.split(";"))
    charset = next((p[8:].strip('"') for p in parameters if p.startswith("charset=")), "utf-8")
    if name not in allowed or charset not in charsets:
        hint = " (curl sends a form unless told otherwise)" if "form-urlencoded" in name else ""
        raise Problem(
            "unsupported_media_type",
            f"Content-Type {given[:100]!r} is not taken here{hint}. "
            f"Send {' or '.join(allowed)}, in {charsets[0].upper()}.",
            [Fault("Content-Type", f"must be {' or '.join(allowed)}")],
            {"Accept": ", ".join(allowed)},
        )
    return _uncompressed(scope, name)


def _uncompressed(scope: Scope, name: str) -> str:
    coding = header(scope, b"content-encoding")
    if coding not in (None, "", "identity"):
        raise Problem(
            "unsupported_media_type",
            f"Content-Encoding {coding[:50]!r} is not taken here. Send the body as it is.",
            [Fault("Content-Encoding", "must be left out")],
        )
    return name


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. More than `limit` bytes is a 413 as soon as it is known."""
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and len(length) < 19 and int(length) > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message["body"]  # all of it at once, as nearly always
        if len(body) > limit:
            raise _too_large(limit)
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _rest(message, receive, limit)
    except TimeoutError:
        raise Problem(
            "body_timeout",
            f"The body did not arrive within {BODY_SECONDS:g} seconds.",
            headers={"Connection": "close"},
        ) from None


async def _rest(message: Any, receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def _too_large(limit: int) -> Problem:
    fault = Fault("body", f"must have at most {limit} bytes", "too_large")
    return Problem("too_large", f"The body is larger than {limit} bytes.", [fault])


def parse(data: bytes) -> Any:
    """The JSON value of a body. Values that we do not take are marked as `Flaw`."""
    if not data.strip():
        raise Problem("bad_json", "The body is empty; a JSON object is needed.")
    try:
        return _decode(data.decode())
    except UnicodeDecodeError as error:
        detail = f"The body is not UTF-8: byte {error.start} does not fit."
    except json.JSONDecodeError as error:
        detail = f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
    except RecursionError:
        detail = "The body is nested far too deeply; at most 32 levels are taken."
    raise Problem("bad_json", detail, [Fault("body", detail, "bad_json")])


def _whole(text: str) -> int | Flaw:
    # 64 bits, so that no reader of ours or of a client rounds it (and int() is quadratic).
    if len(text) < 19:
        return int(text)
    if len(text) <= 20 and abs(int(text)) < 2**63:
        return int(text)
    return Flaw("is a number of more than 64 bits; send it as a string")


def _fraction(text: str) -> float | Flaw:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        return Flaw("is a number that is too large (at most 1.8e308)")
    return number


def _constant(text: str) -> Flaw:
    return Flaw(f"is {text}, which JSON does not have")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found[key] = Flaw("is given twice", "duplicate")
            seen.add(key)
    return found


_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_whole, parse_float=_fraction, parse_constant=_constant
).decode

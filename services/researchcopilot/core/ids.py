"""Ids. Time-ordered UUIDs keep B-trees dense; nothing orders work by them (clocks differ)."""

import os
import time
import uuid


def new_id() -> str:
    """A UUID version 7 (RFC 9562 §5.7): 48 bits of Unix milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def parse_id(text: str) -> str | None:
    """The canonical form of a UUID, or None if it is none."""
    try:
        return str(uuid.UUID(text)) if len(text) in (32, 36) else None
    except ValueError:
        return None

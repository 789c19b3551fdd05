"""Messages between a worker and the process of an isolated run: JSON, each with its length before.

JSON and not pickle: what comes from a process that has just gone wrong is read, never executed.
All of it is ASCII, so that a lone surrogate in an agent's text passes as an escape.
"""

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
LONGEST = 256 * 1_048_576


class Broken(Exception):
    """The other side has sent what is no message of ours."""


class Frames:
    """One end of the pipe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Frames":
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, **message: Any) -> None:
        """Does not wait. To a side that has gone: nothing happens."""
        body = json.dumps(message).encode("ascii")
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def flush(self) -> None:
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other side has gone. Raises Broken."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > LONGEST:
                raise Broken(f"a message of {length} bytes")
            message = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        except ValueError as error:
            raise Broken(str(error)) from error
        if not isinstance(message, dict):
            raise Broken(f"a {type(message).__name__}")
        return message

    def close(self) -> None:
        self._writer.close()

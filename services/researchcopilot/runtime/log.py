"""Logs: one JSON object a line, or aligned text where a person looks at a terminal.

Every line carries what `bound` has put around it (worker_id, run_id, claim_no), also lines of
libraries and of agents. Values are cleaned, so that no log line can break a collector.
"""

import contextvars
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

_bound: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("bound", default={})  # noqa: B039
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {
    "DEBUG": "\x1b[2m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[31;1m",
}


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every line logged inside, in this task and those it starts."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def bind(**fields: Any) -> None:
    """Add fields for the rest of this task; at start: of this process."""
    _bound.set({**_bound.get(), **fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {**_bound.get(), **extra}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)

    @staticmethod
    def _time(record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`12:00:01.123 warning worker  text  key=value …`"""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("researchcopilot.")
        extra = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname.lower():<7} "
            f"{name:<16} {record.getMessage()}"
        )
        if extra:
            line += f"  \x1b[2m{extra}\x1b[0m" if self.colour else f"  {extra}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        tint = _COLOURS.get(record.levelname) if self.colour else None
        return f"{tint}{line}\x1b[0m" if tint else line


def setup(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Send everything to stderr (or `stream`) in one format; called once by each part."""
    stream = stream or sys.stderr
    terminal = stream.isatty()
    as_text = style == "text" or (style == "auto" and terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(terminal) if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)

"""Logs: one JSON object a line, or aligned text where a person looks at a terminal.

Every line carries what the process is (part, worker_id) and what `bound` has put around it
(run_id, claim_no), also lines of libraries and of agents. Values are cleaned, so that no log line
can break a collector.
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
_process: dict[str, Any] = {}
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
    """Add fields for the rest of this task."""
    _bound.set({**_bound.get(), **fields})


def bind_process(**fields: Any) -> None:
    """Add fields to every line of this process, also of its threads and of what runs already."""
    _process.update(fields)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {**_process, **_bound.get(), **extra}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit: what there is, rather than no line
        return f"{_shown(record.msg)} {_shown(record.args)}"


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        line = {**line, **_fields(record), **line}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line, ensure_ascii=True, allow_nan=False, default=_shown)
        except Exception:  # NaN, a circle, keys that are no strings: shown as Python shows them
            return json.dumps({key: _shown(value) for key, value in line.items()})

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
        extra = " ".join(f"{key}={_shown(value)}" for key, value in _fields(record).items())
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname.lower():<7} "
            f"{name:<16} {_message(record)}"
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

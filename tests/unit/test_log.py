"""Logs: one JSON object a line, whatever is logged, and every line says whose it is."""

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from researchcopilot.runtime import log as logs

log = logging.getLogger("researchcopilot.somewhere")


@pytest.fixture
def lines() -> Iterator[Any]:
    """What was logged since: a function that gives the parsed lines."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    process = dict(logs._process)
    logs.setup("debug", "json", stream)
    yield lambda: [json.loads(line, parse_constant=no_constant) for line in
                   stream.getvalue().splitlines()]  # fmt: skip
    logging.captureWarnings(False)
    root.handlers[:], root.level = before
    logs._process.clear()
    logs._process.update(process)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_a_line_is_one_object_with_time_level_logger_and_fields(lines: Any) -> None:
    with logs.bound(run_id="r", claim_no=2):
        log.warning("two\nlines of %s", "text", extra={"queue": "runs"})
    [line] = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning", "logger": "researchcopilot.somewhere", "message": "two\nlines of text",
        "run_id": "r", "claim_no": 2, "queue": "runs",
    }  # fmt: skip


def test_what_is_bound_ends_with_its_block_and_the_inner_one_wins(lines: Any) -> None:
    with logs.bound(a=1), logs.bound(a=2, b=3):
        log.info("in")
    log.info("out")
    inside, outside = lines()
    assert (inside["a"], inside["b"]) == (2, 3)
    assert "a" not in outside


def test_a_process_is_named_also_in_threads_and_in_what_ran_before(lines: Any) -> None:
    async def main() -> None:
        woken = asyncio.Event()

        async def earlier() -> None:
            await woken.wait()
            log.info("task")

        task = asyncio.create_task(earlier())
        await asyncio.sleep(0)
        logs.bind_process(worker_id="w")
        logs.bind(run_id="r")
        woken.set()
        await task
        thread = threading.Thread(target=lambda: log.info("thread"))
        thread.start()
        thread.join()
        log.info("here")

    asyncio.run(main())
    found = {line["message"]: line for line in lines()}
    for name, has_run in (("task", False), ("thread", False), ("here", True)):
        assert found[name]["worker_id"] == "w"
        assert ("run_id" in found[name]) is has_run


class Mute:
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    "value",
    [float("nan"), Mute(), {1, 2}, b"x", "\x00\ud800\x1b[31m", {("a", 1): 2}, [Mute()], 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_no_value_breaks_a_line(lines: Any, value: Any) -> None:
    log.info("text", extra={"field": value})
    log.info("after")
    assert [line["message"] for line in lines()] == ["text", "after"]


def test_a_circle_breaks_no_line(lines: Any) -> None:
    circle: list[Any] = []
    circle.append(circle)
    log.info("text", extra={"field": circle})
    assert lines()[0]["message"] == "text"


def test_arguments_that_do_not_fit_do_not_cost_the_line() -> None:
    def shown(msg: object, *args: object) -> str:
        record = logging.makeLogRecord({"msg": msg, "args": args, "levelname": "INFO"})
        return str(json.loads(logs.JsonFormatter().format(record))["message"])

    assert "%d runs" in shown("%d runs", "many") and "many" in shown("%d runs", "many")
    assert shown("%s", Mute())
    assert shown(Mute())


def test_a_field_never_hides_what_the_line_is(lines: Any) -> None:
    """An agent's `extra={"level": …}` must not turn an error into something else."""
    log.error("text", extra={"level": "fine", "time": "never", "logger": "me"})
    [line] = lines()
    assert (line["level"], line["logger"]) == ("error", "researchcopilot.somewhere")
    assert line["time"] != "never"


def test_errors_bring_their_trace(lines: Any) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    assert "ValueError: why" in lines()[0]["trace"]


def test_text_for_people_is_aligned_and_has_the_fields() -> None:
    record = logging.makeLogRecord(
        {"name": "researchcopilot.worker", "msg": "run %s", "args": ("done",), "levelname": "INFO",
         "run_id": "r", "bad": Mute()}
    )  # fmt: skip
    text = logs.TextFormatter(colour=False).format(record)
    assert "info    worker           run done  run_id=r" in text
    assert "\x1b" not in text
    assert logs.TextFormatter(colour=True).format(record).endswith("\x1b[0m")


def test_auto_is_json_where_nobody_looks_at_a_terminal(lines: Any) -> None:
    stream = io.StringIO()
    logs.setup("warning", "auto", stream)
    log.info("not shown")
    log.warning("shown")
    assert json.loads(stream.getvalue())["message"] == "shown"

"""/livez, /readyz, /metrics: from a thread, whatever the loop does; no check breaks them."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from researchcopilot.core.errors import ConfigError
from researchcopilot.runtime.health import Health, write_ports


@pytest.fixture
def health() -> Iterator[Health]:
    made = Health()
    made.start("127.0.0.1", 0)
    yield made
    made.stop()


def get(health: Health, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{health.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_all_is_well_until_a_check_says_otherwise(health: Health) -> None:
    assert get(health, "/livez") == get(health, "/readyz") == (200, "ok\n")
    health.live["loop"] = lambda: "it is stuck"
    health.ready["postgres"] = lambda: None
    health.ready["redis"] = lambda: "it does not answer"
    assert get(health, "/livez") == (503, "loop: it is stuck\n")
    assert get(health, "/readyz") == (503, "redis: it does not answer\n")
    health.live.clear()
    assert get(health, "/livez")[0] == 200


def test_paths(health: Health) -> None:
    assert get(health, "/readyz?verbose=1")[0] == 200
    status, text = get(health, "/metrics")
    assert status == 200 and "python_info" in text
    status, text = get(health, "/")
    assert status == 404 and "/livez" in text


def test_a_check_that_raises_is_a_check_that_fails(health: Health) -> None:
    def broken() -> str | None:
        raise KeyError("nobody thought of this")

    health.live["broken"] = broken
    health.live["other"] = lambda: "is told too"
    status, text = get(health, "/livez")
    assert status == 503
    assert "broken: this check failed: KeyError" in text
    assert "other: is told too" in text


async def answers_meanwhile(health: Health) -> tuple[int, str]:
    asked = asyncio.get_running_loop().run_in_executor(None, get, health, "/livez")
    time.sleep(0.3)  # noqa: ASYNC251  the loop is blocked, which is what this is about
    assert asked.done() is False  # its answer could not be delivered here yet
    return await asked


def test_it_answers_while_the_loop_is_blocked(health: Health) -> None:
    assert asyncio.run(answers_meanwhile(health)) == (200, "ok\n")


def test_a_port_that_is_taken_is_said_with_what_to_do(health: Health) -> None:
    with pytest.raises(ConfigError, match=f"RC_HEALTH_PORT={health.port}.*or 0 for a free one"):
        Health().start("127.0.0.1", health.port)


def test_ports_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_ports("", health=1)
    file = tmp_path / "ports"
    write_ports(str(file), health=1, api=2)
    assert json.loads(file.read_text()) == {"health": 1, "api": 2}
    assert list(tmp_path.iterdir()) == [file]


def test_a_port_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RC_HEALTH_PORT_FILE"):
        write_ports(str(tmp_path / "nowhere" / "ports"), health=1)

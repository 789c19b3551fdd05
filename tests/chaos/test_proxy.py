"""The proxy of the chaos test: it does what it says, and counts it. Against the real Postgres."""

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.chaos.detour import line_to, over
from tests.chaos.driver import Blow, Seen
from tests.chaos.fault import Fault
from tests.chaos.on_parts import WORKER_KILLED
from tests.chaos.on_servers import POSTGRES
from tests.chaos.proxy import Line, Network, Way
from tests.chaos.verdict import is_meant, without_effect

from researchcopilot.dev.processes import until


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def line(database_url: str) -> Iterator[Line]:
    with line_to(database_url) as line:
        yield line


def connect(line: Line, url: str) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(over(line, url), autocommit=True)


def test_what_passes_is_not_changed(network: Network) -> None:
    """Protects: megabytes in both directions at once come through byte for byte, and the end of a
    stream too."""
    sent = bytes(range(256)) * 20_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = network.line("test", "echo", lambda: server.getsockname()[1])
        echo = threading.Thread(target=_echo, args=(server,))
        echo.start()
        with socket.create_connection(("127.0.0.1", line.port)) as client:
            sender = threading.Thread(target=_send_all, args=(client, sent))
            sender.start()
            received = b"".join(iter(lambda: client.recv(65_536), b""))
            sender.join(10)
        echo.join(10)
    assert received == sent


def _send_all(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while chunk := connection.recv(65_536):
            connection.sendall(chunk)


def test_a_cut_is_seen_at_once_and_a_new_connection_passes(line: Line, database_url: str) -> None:
    with connect(line, database_url) as connection:
        assert line.cut() == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with connect(line, database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("way", list(Way))
def test_one_direction_is_closed_and_what_was_held_comes_late_or_never(
    line: Line, database_url: str, way: Way, late: bool
) -> None:
    """Protects: a request that is held has not happened, one whose answer is held has."""
    with psycopg.connect(database_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE marks (mark int)")
        with connect(line, database_url) as connection:
            answers: list[object] = []
            thread = threading.Thread(target=_mark, args=(connection, answers))
            with line.closed(way, late=late):
                thread.start()
                assert until(lambda: line.counts["held"] > 0, 10.0)
                happened = until(lambda: _marks(direct) == 1, 0.3)
                assert happened == (way is Way.BACK)
                assert answers == []
            thread.join(10)
            assert isinstance(answers[0], psycopg.OperationalError) == (not late)
        assert until(lambda: _marks(direct) == int(late or way is Way.BACK), 10.0)


def _mark(connection: "psycopg.Connection[tuple[Any, ...]]", answers: list[object]) -> None:
    try:
        answers.append(connection.execute("INSERT INTO marks VALUES (1)").rowcount)
    except psycopg.OperationalError as error:
        answers.append(error)


def _marks(direct: "psycopg.Connection[tuple[Any, ...]]") -> int:
    row = direct.execute("SELECT count(*) FROM marks").fetchone()
    assert row is not None
    return int(row[0])


def test_a_move_whose_answer_is_lost_has_committed(line: Line, database_url: str) -> None:
    """Protects: it is the answer that is lost, not the move; and only that of a move."""
    with psycopg.connect(database_url, autocommit=True) as direct:
        direct.execute("CREATE TABLE marks (mark int)")
        with connect(line, database_url) as connection, line.losing(1):
            assert connection.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError), connection.transaction():
                connection.execute("INSERT INTO marks VALUES (1)")
        assert line.counts["answers lost"] == 1
        assert _marks(direct) == 1


def test_slow_lines_are_slow_each_way(line: Line, database_url: str) -> None:
    with connect(line, database_url) as connection, line.slow(0.1):
        before = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - before >= 0.2
    assert line.counts["delayed"] >= 2


def test_a_fault_without_effect_fails_the_test() -> None:
    """Protects: nothing is proved by a fault that did not happen."""
    seen = [Seen(WORKER_KILLED, "worker 1", 1), Seen(WORKER_KILLED, "worker 2", 0)]
    [finding] = without_effect(seen)
    assert "worker 2" in finding.detail


@pytest.mark.parametrize(
    ("fault", "after_s", "meant"),
    [(POSTGRES[1], 6.0, True), (POSTGRES[1], 40.0, False), (WORKER_KILLED, 6.0, False),
     (POSTGRES[1], 3606.0, True)],
)  # fmt: skip
def test_runs_left_to_their_leases_are_meant_only_while_postgres_was_out_of_reach(
    fault: Fault, after_s: float, meant: bool
) -> None:
    """Protects: a worker that cannot hand back although everything answers is a fault."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    told = (at + timedelta(seconds=after_s)).isoformat()
    line = {"level": "error", "time": told, "message": "5 runs are left to their leases"}
    assert is_meant(line, [Blow(fault, at, ())]) == meant

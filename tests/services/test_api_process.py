"""The api as a process: how it starts, what it does when a server is away, how it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from psycopg import sql
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, metric, problem, register, stage, until
from tests.services.conftest import Fragile

from researchcopilot.dev.parts import Part, child_environment
from researchcopilot.dev.postgres import Postgres


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


def call(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The api as a command that has to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "researchcopilot", "api", *arguments],
        env=child_environment(environ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_taken_port_is_one_sentence(here: Stage) -> None:
    """Protects: no stack trace for what an operator can mend."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = call({"RC_DATABASE_URL": here.database_url, "RC_API_PORT": str(port)})
    assert ended.returncode == 2
    assert ended.stderr.strip().count("\n") == 0
    assert (
        f"RC_API_PORT={port} on 127.0.0.1 cannot be used (Address already in use)" in ended.stderr
    )


def test_a_host_of_somewhere_else_is_one_sentence(here: Stage) -> None:
    """Protects: the same for an address that this machine does not have."""
    ended = call({"RC_API_HOST": "192.0.2.1", "RC_API_PORT": "0"})
    assert (ended.returncode, ended.stderr.strip().count("\n")) == (2, 0)
    assert "RC_API_PORT=0 on 192.0.2.1 cannot be used" in ended.stderr
    assert (
        "RC_API_HOST=no.such.host.invalid" in call({"RC_API_HOST": "no.such.host.invalid"}).stderr
    )


def test_arguments_are_refused() -> None:
    """Protects: settings come from the environment; an argument is not ignored."""
    assert call({}, "--port", "80").returncode == 2
    assert "usage: researchcopilot api" in call({}, "--help").stdout


def test_it_waits_for_the_schema_and_says_so(servers: Servers) -> None:
    """Protects: an api on an older database lets nobody in, tells why, and starts by itself."""
    name = sql.Identifier("api_without_schema")
    servers.admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
    url = servers.postgres.url("api_without_schema")
    environ = {"RC_DATABASE_URL": url, "RC_REDIS_URL": servers.valkey.url, "RC_API_PORT": "0"}
    part = Part("api early", ["api"], environ, folder=servers.folder, guard=servers.guard)
    try:
        part.launch()
        until(lambda: "python -m researchcopilot migrate" in (part.complaint() or ""), 20)
        assert "api" not in part.ports
        until(lambda: "python -m researchcopilot migrate" in part.child.tail())
        migrated = subprocess.run(
            [sys.executable, "-m", "researchcopilot", "migrate"],
            env=child_environment(environ),
            timeout=30,
            check=False,
        )
        assert migrated.returncode == 0
        part.wait_ready(20)
        assert httpx.get(f"http://127.0.0.1:{part.ports['api']}/").status_code == 200
    finally:
        assert part.stop() == 0
        servers.admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_it_ends_while_it_waits_for_the_schema(servers: Servers) -> None:
    """Protects: SIGTERM is heard before the start is through."""
    name = sql.Identifier("api_never")
    servers.admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
    environ = {"RC_DATABASE_URL": servers.postgres.url("api_never"), "RC_API_PORT": "0"}
    part = Part("api never", ["api"], environ, folder=servers.folder, guard=servers.guard)
    try:
        part.launch()
        until(lambda: "waits for" in (part.complaint() or ""), 20)
        assert part.stop() == 0
    finally:
        part.kill()
        servers.admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_a_redis_that_is_down_still_gives_202(here: Stage) -> None:
    """Protects: the row is the truth: accepting waits for the commit and never for Redis."""
    api = here.start(RC_REDIS_URL=f"redis://127.0.0.1:{closed_port()}/0")
    with api.client() as client:
        for _ in range(20):
            started = time.monotonic()
            answer = client.post("/v1/runs", json={"input": 1})
            assert answer.status_code == 202
            assert time.monotonic() - started < 2
        assert client.get(answer.headers["location"]).json()["status"] == "queued"
    assert api.part.stop() == 0


def test_sigterm_finishes_what_is_under_way(here: Stage) -> None:
    """Protects: a drain loses nothing: held requests are answered, new ones are refused by the
    closed port, the process ends with 0."""
    api = here.start()
    with api.client() as client, ThreadPoolExecutor(8) as pool:
        run = client.post("/v1/runs", json={"input": 1}).json()
        path = run["links"]["self"]
        held = [pool.submit(client.get, path, params={"wait": 60}) for _ in range(8)]
        until(lambda: metric(api, "researchcopilot_api_waiting_requests") == 8)
        os.kill(api.part.pid, signal.SIGTERM)
        answers = [answer.result(10) for answer in held]
        assert {answer.json()["status"] for answer in answers} == {"queued"}
        assert {answer.headers["connection"] for answer in answers} == {"close"}
        with pytest.raises(httpx.ConnectError):
            until(lambda: client.get("/").status_code == 0)
    until(lambda: not api.part.alive, 10)
    assert api.part.stop() == 0


def test_accepted_means_committed_also_in_a_drain(here: Stage) -> None:
    """Protects: under load, every 202 that was given before a SIGTERM is a row, and its hint has
    reached Redis."""
    api = here.start()
    accepted: list[str] = []

    def post() -> None:
        with api.client() as client:
            try:
                while True:
                    answer = client.post("/v1/runs", json={"input": 1, "agent": "echo"})
                    if answer.status_code == 202:
                        accepted.append(answer.json()["run_id"])
            except httpx.TransportError:
                return  # the port is closed

    with ThreadPoolExecutor(8) as pool:
        posting = [pool.submit(post) for _ in range(8)]
        until(lambda: len(accepted) > 100)
        assert api.part.stop() == 0
        for future in posting:
            future.result(10)
    entries = set(here.servers.flusher.lrange("queue:runs", 0, -1))
    assert {f"1.{run_id}".encode() for run_id in accepted} <= entries
    other = here.start()
    with other.client() as client:
        for run_id in accepted[-50:]:
            assert client.get(f"/v1/runs/{run_id}").status_code == 200


def test_a_second_signal_does_not_wait(here: Stage) -> None:
    """Protects: an operator who insists is obeyed although a request hangs."""
    api = here.start()
    port = api.part.ports["api"]
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {here.key}\r\n"
        raw.sendall((head + "Content-Length: 100\r\n\r\n{").encode())
        with api.client() as client:  # that one has been taken in by now
            assert client.get("/v1/runs").status_code == 200
        os.kill(api.part.pid, signal.SIGTERM)
        until(lambda: "draining" in (api.part.complaint() or ""))
        os.kill(api.part.pid, signal.SIGTERM)
        until(lambda: not api.part.alive, 5)


def test_postgres_away_is_a_503_and_its_return_is_noticed(
    servers: Servers, fragile: Fragile
) -> None:
    """Protects: who asks meanwhile gets 503 with Retry-After; a submit rides out a restart; no
    error of ours in the log."""
    here = Stage(servers, fragile.environment["RC_DATABASE_URL"], "")
    here.key = here.new_key("default")
    here.run(register)
    try:
        check_outage(here.start(), fragile.postgres)
    finally:
        for part in here.parts:
            part.stop()


def check_outage(api: Api, postgres: Postgres) -> None:
    with api.client() as client, ThreadPoolExecutor(1) as pool:
        path = client.post("/v1/runs", json={"input": 1, "agent": "echo"}).headers["location"]
        postgres.stop()
        refusal = client.get(path)
        problem(refusal, 503, "unavailable")
        assert int(refusal.headers["retry-after"]) >= 1
        assert "127.0.0.1" not in refusal.text
        headers = {"Idempotency-Key": "through-the-outage"}
        body = {"input": 2, "agent": "echo"}
        riding = pool.submit(client.post, "/v1/runs", json=body, headers=headers)
        postgres.start()
        answer = riding.result(30)
        if answer.status_code == 503:  # its key was asked for while nobody could say
            answer = client.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        until(lambda: client.get(path).status_code == 200)
    assert api.part.stop() == 0
    assert "Traceback" not in api.part.child.tail(1000)

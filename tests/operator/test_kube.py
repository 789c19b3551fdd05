"""The door to the API server: credentials, a token that is replaced, errors that say what to do."""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import aiohttp
import aiohttp.web
import kopf
import pytest
from kmock import KubernetesError
from tests.operator.cluster import NAMESPACE, PODS, Served
from tests.operator.rude import as_json, rude
from tests.operator.stage import a_pod

from researchcopilot.core.errors import ConfigError, Unavailable
from researchcopilot.operator import kube as door
from researchcopilot.operator.kube import Kube, KubeRefused, Token, credentials, open_session

pytestmark = pytest.mark.anyio
THEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
LIST = f"/api/v1/namespaces/{NAMESPACE}/pods"


async def test_a_long_list_is_read_in_pages(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "PAGE", 2)
    for n in range(5):
        await served.cluster.apply(PODS, a_pod(f"p-{n}"))
    kube = Kube(served.credentials)
    pages = [[pod["metadata"]["name"] for pod in page] async for page in kube.pages(LIST)]
    await kube.close()
    assert pages == [["p-0", "p-1"], ["p-2", "p-3"], ["p-4"]]


async def test_what_is_refused_says_what_and_why(served: Served) -> None:
    kube = Kube(served.credentials)
    served.cluster.refuse = KubernetesError(status=403, message="pods is forbidden")
    with pytest.raises(KubeRefused, match=r"refuses GET .*/pods with 403: .*pods is forbidden"):
        await kube.call("GET", LIST)
    for status in (429, 500, 503):
        served.cluster.refuse = KubernetesError(status=status, message="not now")
        with pytest.raises(Unavailable, match="cannot answer GET"):
            await kube.call("GET", LIST)
    served.cluster.refuse = None
    await served.close()
    with pytest.raises(Unavailable, match="does not answer GET"):
        await kube.call("GET", LIST)
    await served.open()
    await kube.close()


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "<html>", '{"kind": "PodLi', "{}", '{"items": []}', '{"kind": "Status"}',
     '{"kind": "PodList", "metadata": {}}', '{"x":' * 20_000 + "1" + "}" * 20_000],
    ids=lambda text: text[:20] or "nothing",
)  # fmt: skip
async def test_what_is_no_list_is_not_taken_for_an_empty_one(text: str) -> None:
    """What is not on a list is gone: its runs are cancelled, its workers' runs taken back."""

    async def answer(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return as_json(text)

    async with rude(answer) as server:
        kube = Kube(server.credentials)
        with pytest.raises(Unavailable, match=r"^What answers GET .*/pods is no API server, or "):
            await anext(kube.pages(LIST))
        await kube.close()


async def test_an_empty_list_is_one_also_as_go_writes_it() -> None:
    async def answer(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return as_json('{"kind": "PodList", "metadata": null, "items": null}')

    async with rude(answer) as server:
        kube = Kube(server.credentials)
        assert [page async for page in kube.pages(LIST)] == [[]]
        await kube.close()


@pytest.mark.parametrize("date", ["soon", "Mon, 30 Nov 2026 10:00:00 -0000"])
async def test_a_date_that_says_no_time_moves_no_clock(date: str) -> None:
    """Neither an answer is lost by it, nor is the next comparison of times."""

    async def answer(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.json_response({"major": "1"}, headers={"Date": date})

    async with rude(answer) as server:
        kube = Kube(server.credentials)
        before = kube.now()
        assert await kube.call("GET", "/version") == {"major": "1"}
        assert 0 <= (kube.now() - before).total_seconds() < 60
        await kube.close()


async def test_a_server_that_answers_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as quiet:  # it listens, and nobody accepts
        url = f"http://127.0.0.1:{quiet.getsockname()[1]}"
        kube = Kube(lambda: kopf.ConnectionInfo(server=url))
        with pytest.raises(Unavailable, match="does not answer GET"):
            await kube.call("GET", LIST)
        await kube.close()


async def test_the_token_is_read_again_since_a_kubelet_replaces_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is good for an hour; an operator that kept it would be deaf after that."""
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setattr(door, "ACCOUNT", tmp_path)
    monkeypatch.setattr(door, "TOKEN_S", -1.0)
    kube = Kube(served.credentials)
    await kube.call("GET", LIST)
    (tmp_path / "token").write_text("second")
    await kube.call("GET", LIST)
    await kube.close()
    told = [request.headers["Authorization"] for request in served.cluster.asked]
    assert told == ["Bearer first", "Bearer second"]


async def test_the_token_is_not_read_for_each_request(served: Served, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    token = Token(tmp_path / "token")
    async with aiohttp.ClientSession(middlewares=(token,)) as session:
        for text in ("first", "second"):
            (tmp_path / "token").write_text(text)
            await session.get(served.credentials().server + LIST)
    assert {r.headers["Authorization"] for r in served.cluster.asked} == {"Bearer first"}


async def test_it_says_who_it_is(served: Served) -> None:
    opened = open_session(served.credentials())
    await opened.aiohttp_session.get(opened.server + LIST)
    await opened.aiohttp_session.close()
    [request] = served.cluster.asked
    assert request.headers["User-Agent"].startswith("researchcopilot-operator/")


async def test_the_api_servers_clock_is_the_one_that_counts() -> None:
    """Ours may be wrong by hours: no drain of a Pod is over because of that. It goes on by itself
    between two answers."""
    async with answering_version() as url:
        kube = Kube(lambda: kopf.ConnectionInfo(server=url))
        await kube.call("GET", "/version")
        first = kube.now()
        assert timedelta(0) <= first - THEN < timedelta(minutes=1)
        assert kube.now() > first
        await kube.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "FileNotFoundError"),
        ("{", "cannot be used"),
        ("contexts: []\ncurrent-context: c\n", "cannot be used"),
    ],
    ids=["no file", "no YAML", "no such context"],
)
def test_credentials_that_are_no_good_are_told(
    text: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ConfigError, match=words):
        credentials()


def test_outside_of_a_cluster_it_ends_and_says_what_it_lacks(
    environment: dict[str, str], tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-m", "researchcopilot", "operator"],
        env={**environment, **home}, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "There is no API server to talk to" in done.stderr


class Strict(kopf.ConnectionInfo):
    """What Python 3.13 and newer makes of the same credentials."""

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


async def test_an_authority_without_a_key_usage_is_believed_as_kubectl_believes_it(
    tmp_path: Path,
) -> None:
    """Many clusters have made one for themselves; whoever else's certificate is refused."""
    for name in ("ca", "other"):
        self_signed(tmp_path, name)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(*signed(tmp_path, "ca"))
    async with answering_version(serving) as url:
        believing = Kube(lambda: Strict(server=url, ca_path=str(tmp_path / "ca.crt")))
        doubting = Kube(lambda: Strict(server=url, ca_path=str(tmp_path / "other.crt")))
        assert await believing.call("GET", "/version") == {"major": "1"}
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await doubting.call("GET", "/version")
        for kube in (believing, doubting):
            await kube.close()


@asynccontextmanager
async def answering_version(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server, by its URL, that tells a version, and by its clock the moment THEN."""

    async def version(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.json_response({"major": "1"}, headers={"Date": format_datetime(THEN)})

    app = aiohttp.web.Application()
    app.router.add_get("/version", version)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def self_signed(folder: Path, name: str) -> None:
    """An authority with nothing but `CA:TRUE`."""
    (folder / "ca.cnf").write_text(
        "[req]\ndistinguished_name=dn\nx509_extensions=v3\n[dn]\n[v3]\nbasicConstraints=CA:TRUE\n"
    )
    openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", "ca.cnf"),
        *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt"),
        folder=folder,
    )


def signed(folder: Path, by: str) -> tuple[Path, Path]:
    """Certificate and key of a server on 127.0.0.1."""
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=api", "-config", "ca.cnf"),
        *("-keyout", "api.key", "-out", "api.csr"),
        folder=folder,
    )
    openssl(
        *("x509", "-req", "-in", "api.csr", "-CA", f"{by}.crt", "-CAkey", f"{by}.key"),
        *("-CAcreateserial", "-days", "2", "-extfile", "ext", "-out", "api.crt"),
        folder=folder,
    )
    return folder / "api.crt", folder / "api.key"

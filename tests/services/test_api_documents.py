"""The corpus over HTTP: what comes in, what is there already, and the rebuild that it asks for."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import Api, Stage, problem, stage

TEXT = "# 召回率\n\nRecall@k 衡量检索的召回。\n"
MARKDOWN = {"Content-Type": "text/markdown"}


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def api(here: Stage) -> Api:
    return here.start()


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    """In a workspace of this test's own."""
    with api.client(api.stage.new_key(f"w-{uuid.uuid4()}")) as opened:
        yield opened


def test_a_document_comes_back_as_it_was_cited(client: httpx.Client) -> None:
    """Protects: what is stored is what came, so that a citation's span can be checked."""
    answer = client.post("/v1/documents?name=recall.md", content=TEXT, headers=MARKDOWN)
    stored = answer.json()
    assert (answer.status_code, stored["outcome"]) == (201, "added")
    full = client.get(answer.headers["location"]).json()
    assert (full["text"], full["title"], full["name"]) == (TEXT, "召回率", "recall.md")
    assert full["bytes"] == len(TEXT.encode())
    [listed] = client.get("/v1/documents").json()["data"]
    assert listed == {name: full[name] for name in listed}
    assert "text" not in listed


def test_storing_asks_for_one_rebuild(client: httpx.Client) -> None:
    """Protects: every stored document leads to a new index; what waits already is not doubled."""
    first = client.post("/v1/documents", json={"name": "a.txt", "text": "one"}).json()
    second = client.post("/v1/documents", json={"name": "b.txt", "text": "two"}).json()
    assert first["rebuild_run_id"] == second["rebuild_run_id"]
    run = client.get(f"/v1/runs/{first['rebuild_run_id']}").json()
    assert (run["agent"], run["queue"], run["status"]) == ("rebuild_index", "system", "queued")
    assert (run["session_id"], run["links"]["messages"]) == (None, None)


def test_the_outcome_says_what_became_of_it(client: httpx.Client, here: Stage) -> None:
    """Protects: added, unchanged, replaced and duplicate are told apart; the old text stays."""

    def send(name: str, text: str) -> tuple[int, dict[str, str]]:
        answer = client.post("/v1/documents", json={"name": name, "text": text})
        return answer.status_code, answer.json()

    status, added = send("a.md", "first")
    assert (status, added["outcome"]) == (201, "added")
    status, same = send("a.md", "first")
    assert (status, same["outcome"], same["document_id"]) == (
        200,
        "unchanged",
        added["document_id"],
    )
    status, twin = send("b.md", "first")
    assert (status, twin["outcome"], twin["duplicate_of"]) == (200, "duplicate", "a.md")
    here.finish(added["rebuild_run_id"])
    status, new = send("a.md", "second")
    assert (status, new["outcome"]) == (201, "replaced")
    assert new["rebuild_run_id"] != added["rebuild_run_id"]
    old = client.get(f"/v1/documents/{added['document_id']}").json()
    assert (old["text"], old["retired_at"] is None) == ("first", False)
    assert client.get(f"/v1/documents/{new['document_id']}").json()["text"] == "second"


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="notes.md"', "notes.md"),
        ("attachment; filename=notes.md", "notes.md"),
        ('attachment; filename="C:\\\\docs\\\\notes.md"', "notes.md"),
        ('attachment; filename="../../etc/notes.md"', "notes.md"),
        ("attachment; filename=\"x.md\"; filename*=UTF-8''%E7%AC%94%E8%AE%B0.md", "笔记.md"),
    ],
)
def test_the_name_may_stand_in_content_disposition(
    client: httpx.Client, disposition: str, name: str
) -> None:
    """Protects: uploads of common clients keep their file name, without folders."""
    headers = {**MARKDOWN, "Content-Disposition": disposition}
    answer = client.post("/v1/documents", content="text", headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == name


@pytest.mark.parametrize(
    ("name", "content", "field", "words"),
    [
        ("a.md", b"", "body", "is empty"),
        ("a.md", b" \n\n", "body", "is empty"),
        ("a.md", b"\x00\x01\x02", "body", "binary"),
        ("a.txt", b"%PDF-1.7 ...", "body", "a PDF"),
        ("a.md", b"\xff\xfe\xfd\xfc", "body", "UTF-"),
        ("a.pdf", b"text", "name", "is not one of .md"),
        ("a" * 500 + ".md", b"text", "name", "1 to 500"),
    ],
)
def test_what_is_no_document_is_refused(
    client: httpx.Client, name: str, content: bytes, field: str, words: str
) -> None:
    """Protects: the sentence of the reader reaches the client, with the field."""
    params = {"name": name}
    answer = client.post("/v1/documents", params=params, content=content, headers=MARKDOWN)
    [error] = problem(answer, 422, answer.json()["code"])["errors"]
    assert error["field"] == field
    assert words in error["message"]
    assert client.get("/v1/documents").json()["data"] == []


def test_gb18030_is_read(client: httpx.Client) -> None:
    """Protects: Chinese text of older editors is taken as what it is."""
    content = TEXT.encode("gb18030")
    headers = {"Content-Type": "text/markdown; charset=GB18030"}
    answer = client.post("/v1/documents?name=old.md", content=content, headers=headers)
    assert client.get(answer.headers["location"]).json()["text"] == TEXT


def test_large_documents_hold_up_nobody(api: Api, client: httpx.Client) -> None:
    """Protects: up to the limit of 16 MiB is taken, over it is a 413, as bytes and as JSON."""
    line = "the quick brown fox jumps over the lazy dog. " * 20 + "\n"
    large = (line * (16_000_000 // len(line))).encode()
    answer = client.post("/v1/documents?name=large.txt", content=large, headers=MARKDOWN)
    assert answer.status_code == 201, answer.text
    assert client.get(answer.headers["location"]).json()["bytes"] == len(large)
    too_large = large + large[:2_000_000]
    for content, headers in (
        (too_large, MARKDOWN),
        (
            json.dumps({"name": "b.txt", "text": too_large.decode()}).encode(),
            {"Content-Type": "application/json"},
        ),
    ):
        params = {"name": "b.txt"} if headers is MARKDOWN else {}
        refusal = client.post("/v1/documents", params=params, content=content, headers=headers)
        problem(refusal, 413, "too_large")


def test_the_corpus_is_paged_by_name(client: httpx.Client) -> None:
    """Protects: each document stands on one page."""
    with ThreadPoolExecutor(4) as pool:
        bodies = [{"name": f"{number:02}.txt", "text": f"no {number}"} for number in range(7)]
        for answer in pool.map(lambda body: client.post("/v1/documents", json=body), bodies):
            assert answer.status_code == 201, answer.text
    names, url = [], "/v1/documents?limit=3"
    while url:
        answer = client.get(url)
        names += [document["name"] for document in answer.json()["data"]]
        url = answer.links.get("next", {}).get("url", "")
    assert names == [f"{number:02}.txt" for number in range(7)]

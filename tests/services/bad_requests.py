"""Requests that the api has to refuse: what is sent, and what has to come back."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import httpx

MAX_BODY, MAX_INPUT = 20_000, 5_000
JSON = {"Content-Type": "application/json"}


Send = Callable[[httpx.Client], httpx.Response]


def post(content: Any, path: str = "/v1/runs", **headers: str) -> Send:
    """A POST of bytes, or of anything else as JSON."""
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda client: client.post(path, content=content, headers={**JSON, **named})


def get(path: str, **headers: str) -> Send:
    return lambda client: client.get(path, headers=headers)


def chunks(size: int) -> Send:
    """A body without Content-Length."""
    parts = (b" " * 1000 for _ in range(size // 1000))
    return lambda client: client.post("/v1/runs", content=parts, headers=JSON)


RUN = f"/v1/runs/{uuid.UUID(int=7)}"
SESSION = f"/v1/sessions/{uuid.UUID(int=7)}"
UNKNOWN = str(uuid.UUID(int=7))
# name → (request, status, code, the field that is named or None)
BAD: dict[str, tuple[Send, int, str, str | None]] = {
    "no body": (post(b""), 400, "bad_json", None),
    "no JSON": (post(b"{input: 1}"), 400, "bad_json", "body"),
    "bad UTF-8": (post(b'{"input": "\xff\xfe"}'), 400, "bad_json", "body"),
    "UTF-16": (post('{"input": "x"}'.encode("utf-16")), 400, "bad_json", "body"),
    "a bomb of brackets": (post(b"[" * 19_000), 400, "bad_json", "body"),
    "nested 33 deep": (
        post({"input": json.loads("[" * 33 + "]" * 33)}),
        422,
        "too_deep",
        "$.input",
    ),
    "a list": (post([]), 422, "wrong_type", "$"),
    "unknown field": (post({"input": 1, "prio": 2}), 422, "unknown_field", "$.prio"),
    "wrong type": (post({"input": 1, "metadata": 2}), 422, "wrong_type", "$.metadata"),
    "NUL": (post({"input": "a\0b"}), 422, "invalid", "$.input"),
    "NUL in metadata": (post({"input": 1, "metadata": {"a": "\0"}}), 422, "x", "$.metadata.a"),
    "surrogate": (post(b'{"input": "\\ud800"}'), 422, "invalid", "$.input"),
    "surrogate in a key": (post(b'{"input": 1, "\\ud800": 1}'), 422, "unknown_field", "$.\ufffd"),
    "NaN": (post(b'{"input": NaN}'), 422, "invalid", "$.input"),
    "huge integer": (post(b'{"input": ' + b"9" * 10_000 + b"}"), 422, "invalid", "$.input"),
    "huge float": (post(b'{"input": 1e400}'), 422, "invalid", "$.input"),
    "a key twice": (post(b'{"input": 1, "input": 2}'), 422, "duplicate", "$.input"),
    "empty input": (post({"input": " "}), 422, "empty", "$.input"),
    "long input": (post({"input": "界" * 2_000}), 413, "too_large", "$.input"),
    "long input, escaped": (post({"input": "a" + "\x1f" * 1_000}), 413, "too_large", "$.input"),
    "long input that its schema would refuse": (
        post({"input": [1.5] * 2_000, "agent": "words"}),
        413,
        "too_large",
        "$.input",
    ),
    "wide input": (post({"input": [1.5] * 2_000}), 413, "too_large", "$.input"),
    "long body": (post(b" " * (MAX_BODY + 1)), 413, "too_large", "body"),
    "long body in chunks": (chunks(MAX_BODY * 50), 413, "too_large", "body"),
    "no session": (post({"input": 1, "session_id": "abc"}), 422, "invalid", "$.session_id"),
    "both times": (
        post({"input": 1, "run_at": "2030-01-01T00:00:00Z", "delay_s": 1}),
        422,
        "invalid",
        "$.delay_s",
    ),
    "in two years": (post({"input": 1, "run_at": "2999-01-01T00:00:00Z"}), 422, "x", "$.run_at"),
    "naive time": (post({"input": 1, "run_at": "2027-01-01T00:00:00"}), 422, "x", "$.run_at"),
    "past deadline": (
        post({"input": 1, "deadline": "2020-01-01T00:00:00Z"}),
        422,
        "invalid",
        "$.deadline",
    ),
    "far deadline": (
        post({"input": 1, "deadline": "9999-12-31T23:59:59Z"}),
        422,
        "invalid",
        "$.deadline",
    ),
    "deadline before due": (
        post({"input": 1, "delay_s": 31_000_000, "deadline": "2026-12-24T00:00:00Z"}),
        422,
        "invalid",
        "$.deadline",
    ),
    "unknown agent": (post({"input": 1, "agent": "gpt"}), 422, "unknown_agent", "$.agent"),
    "unknown queue": (post({"input": 1, "queue": "rnus"}), 422, "unknown_queue", "$.queue"),
    "refused by the agent's schema": (
        post({"input": {"a": 1}, "agent": "words"}),
        422,
        "input_refused",
        "$.input",
    ),
    "refused by the agent's schema, in a batch": (
        post(
            {"runs": [{"input": "a", "agent": "words"}, {"input": 1, "agent": "words"}]},
            "/v1/runs:batch",
        ),
        422,
        "input_refused",
        "$.runs[1].input",
    ),
    "empty batch": (post({"runs": []}, "/v1/runs:batch"), 422, "invalid", "$.runs"),
    "1,001 runs": (post({"runs": [{}] * 1001}, "/v1/runs:batch"), 422, "invalid", "$.runs"),
    "bad run in a batch": (
        post({"runs": [{"input": 1}, {"input": ""}]}, "/v1/runs:batch"),
        422,
        "empty",
        "$.runs[1].input",
    ),
    "a run as batch": (post({"input": 1}, "/v1/runs:batch"), 422, "invalid", "$.input"),
    "bad session": (post({"input": 1}, "/v1/sessions/x/runs"), 422, "invalid", "session_id"),
    "session twice": (
        post({"input": 1, "session_id": UNKNOWN}, f"{SESSION}/runs"),
        422,
        "unknown_field",
        "$.session_id",
    ),
    "long key": (post({"input": 1}, Idempotency_Key="k" * 256), 422, "x", "Idempotency-Key"),
    "blank key": (post({"input": 1}, Idempotency_Key=""), 422, "x", "Idempotency-Key"),
    "open quote": (post({"input": 1}, Idempotency_Key='"k'), 422, "x", "Idempotency-Key"),
    "a form": (
        lambda client: client.post("/v1/runs", data={"input": "1"}),
        415,
        "unsupported_media_type",
        "Content-Type",
    ),
    "latin-1": (
        post(b"{}", Content_Type="application/json; charset=latin-1"),
        415,
        "unsupported_media_type",
        "Content-Type",
    ),
    "gzip": (
        post(b"{}", Content_Encoding="gzip"),
        415,
        "unsupported_media_type",
        "Content-Encoding",
    ),
    "a parameter of a POST": (post({"input": 1}, "/v1/runs?x=1"), 422, "x", "x"),
    "bad id": (get("/v1/runs/123"), 422, "invalid", "run_id"),
    "braced id": (get("/v1/runs/{" + UNKNOWN[1:-1] + "}"), 422, "invalid", "run_id"),
    "unknown id": (get(RUN), 404, "not_found", None),
    "wait=abc": (get(f"{RUN}?wait=abc"), 422, "wrong_type", "wait"),
    "wait=-1": (get(f"{RUN}?wait=-1"), 422, "invalid", "wait"),
    "wait=61": (get(f"{RUN}?wait=61"), 422, "invalid", "wait"),
    "wait=nan": (get(f"{RUN}?wait=nan"), 422, "wrong_type", "wait"),
    "wait twice": (get(f"{RUN}?wait=1&wait=2"), 422, "invalid", "wait"),
    "unknown parameter": (get("/v1/runs?state=queued"), 422, "unknown_parameter", "state"),
    "bad status": (get("/v1/runs?status=done"), 422, "invalid", "status"),
    "limit=0": (get("/v1/runs?limit=0"), 422, "invalid", "limit"),
    "limit=201": (get("/v1/runs?limit=201"), 422, "invalid", "limit"),
    "limit=x": (get("/v1/runs?limit=x"), 422, "wrong_type", "limit"),
    "bad cursor": (get("/v1/runs?cursor=abc"), 422, "bad_cursor", "cursor"),
    "cursor of others": (get(f"{SESSION}/messages?cursor=WyJydW5zIl0"), 422, "x", "cursor"),
    "long cursor": (get("/v1/runs?cursor=" + "a" * 2000), 422, "invalid", "cursor"),
    "NUL in a filter": (get("/v1/runs?agent=%00"), 422, "invalid", "agent"),
    "bytes in a filter": (get("/v1/runs?agent=%ff"), 422, "invalid", None),
    "bad time": (get("/v1/runs?created_after=yesterday"), 422, "x", "created_after"),
    "unescaped plus": (
        get("/v1/runs?created_after=2026-01-01T00:00:00+08:00"),
        422,
        "invalid",
        "created_after",
    ),
    "document without a name": (
        post(b"# text", "/v1/documents", Content_Type="text/markdown"),
        422,
        "required",
        "name",
    ),
    "document, NUL in its name": (
        post(b"# text", "/v1/documents?name=%00.md", Content_Type="text/markdown"),
        422,
        "invalid",
        "name",
    ),
    "document as PDF": (
        post(b"%PDF", "/v1/documents?name=a.pdf", Content_Type="application/pdf"),
        415,
        "unsupported_media_type",
        "Content-Type",
    ),
    "large document": (
        post(b"x" * (MAX_BODY + 1), "/v1/documents?name=a.md", Content_Type="text/plain"),
        413,
        "too_large",
        "body",
    ),
    "surrogates in a document": (
        post(b'{"name": "a.md", "text": "\\udfff"}', "/v1/documents"),
        422,
        "invalid",
        "$.text",
    ),
    "bad document id": (get("/v1/documents/7"), 422, "invalid", "document_id"),
    "no such path": (get("/v2/runs"), 404, "not_found", None),
    "slash at the end": (get("/v1/runs/"), 404, "not_found", None),
    "bytes in a path": (get("/v1/runs/%ff%00"), 422, "invalid", "run_id"),
    "PUT": (lambda client: client.put("/v1/runs", json={}), 405, "method_not_allowed", None),
    "an odd method": (lambda c: c.request("PURGE", RUN), 405, "method_not_allowed", None),
}

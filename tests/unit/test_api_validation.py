"""What the api takes and refuses, without a server: bodies, fields, parameters, keys."""

import json
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from researchcopilot.agents.new_runs import NEW_RUN, NEW_RUNS
from researchcopilot.api import bodies, idempotency, openapi
from researchcopilot.api.operations import Param, read_query
from researchcopilot.api.problems import (
    MAX_FAULTS,
    PROBLEMS,
    Fault,
    Problem,
    of_error,
    refuse,
    respond,
)
from researchcopilot.api.routes import OPERATIONS
from researchcopilot.core.errors import BadInput, Busy, NotFound, TooLarge, Unavailable
from researchcopilot.core.schemas import Id, Json, Kind, Moment, Number, Pairs, Text, Whole

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = sorted(NEW_RUN.fields)
# Bodies that are nearly right reach deeper than arbitrary ones.
NEARLY_RUNS = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), ANY_JSON, max_size=6)


def faults_of(kind: Kind, value: Any) -> list[Fault]:
    faults: list[Fault] = []
    kind.check(value, "$", faults)
    return faults


def checked(data: bytes) -> tuple[Any, list[Fault]]:
    faults: list[Fault] = []
    return NEW_RUN.check(bodies.parse(data), "$", faults), faults


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_parsed_or_refused_as_400(data: bytes) -> None:
    """Protects: no body makes the parser raise anything but a 400."""
    try:
        bodies.parse(data)
    except Problem as problem:
        assert problem.status == 400


@given(NEARLY_RUNS)
def test_any_object_is_taken_or_refused_with_faults(value: dict[str, Any]) -> None:
    """Protects: validation never raises, and what it takes fits the published schema."""
    data = json.dumps(value).encode()
    fields, faults = checked(data)
    assert (fields is None) == bool(faults)
    if fields is None:
        problem = refuse(faults)
        assert 400 <= problem.status < 500
        json.loads(bytes(respond(problem, "r").body))  # also with surrogates in a field's name
    else:
        Draft202012Validator(NEW_RUN.schema()).validate(json.loads(data))


DEEP = 100_000
BAD_BODIES = {
    "nothing": (b"", "bad_json"),
    "blank": (b" \n", "bad_json"),
    "cut off": (b'{"input": "x"', "bad_json"),
    "two values": (b"{} {}", "bad_json"),
    "bad UTF-8": (b'{"input": "\xff"}', "bad_json"),
    "surrogates as UTF-8": (b'{"input": "\xed\xa0\x80"}', "bad_json"),
    "100,000 open brackets": (b"[" * DEEP, "bad_json"),
    "100,000 brackets": (b'{"input":' + b"[" * DEEP + b"]" * DEEP + b"}", "bad_json"),
    "100,000 objects": (b'{"input":' * DEEP + b"1" + b"}" * DEEP, "bad_json"),
    "raw control character": (b'{"input": "\x00"}', "bad_json"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_what_is_no_json_is_refused(name: str) -> None:
    """Protects: the parser does not crash, and says where it stopped."""
    data, code = BAD_BODIES[name]
    with pytest.raises(Problem) as caught:
        bodies.parse(data)
    assert (caught.value.code, caught.value.status) == (code, 400)


# body → the field that is named, and words that its message has
BAD_FIELDS: dict[str, tuple[str, str, str]] = {
    "no object": ("[]", "$", "must be an object, not an array"),
    "NaN alone": ("NaN", "$", "NaN"),
    "no input": ("{}", "$.input", "is required"),
    "null input": ('{"input": null}', "$.input", "is required"),
    "empty input": ('{"input": ""}', "$.input", "must not be empty"),
    "blank input": ('{"input": " \\n\\t"}', "$.input", "must not be empty"),
    "unknown field": ('{"input": 1, "inptu": 2}', "$.inptu", "did you mean input?"),
    "NUL": ('{"input": "a\\u0000"}', "$.input", "NUL (U+0000)"),
    "NUL inside": ('{"input": {"a": [1, "\\u0000"]}}', "$.input.a[1]", "NUL"),
    "NUL in a key": ('{"input": {"a\\u0000": 1}}', "$.input", "NUL"),
    "lone surrogate": ('{"input": "\\ud800"}', "$.input", "lone surrogate (U+D800)"),
    "surrogates in the wrong order": ('{"input": "\\udc00\\ud800"}', "$.input", "surrogate"),
    "33 levels": ('{"input": ' + "[" * 33 + "]" * 33 + "}", "$.input", "deeper than 32 levels"),
    "a key twice": ('{"input": {"a": 1, "a": 2}}', "$.input.a", "given twice"),
    "input twice": ('{"input": 1, "input": 2}', "$.input", "given twice"),
    "NaN": ('{"input": [NaN]}', "$.input[0]", "is NaN"),
    "infinity": ('{"input": -Infinity}', "$.input", "Infinity"),
    "1e999": ('{"input": 1e999}', "$.input", "too large"),
    "huge integer": ('{"input": ' + "9" * 5000 + "}", "$.input", "more than 64 bits"),
    "65 bits": (f'{{"input": {2**64}}}', "$.input", "more than 64 bits"),
    "agent a number": ('{"input": 1, "agent": 5}', "$.agent", "must be a string, not a number"),
    "agent too long": (f'{{"input": 1, "agent": "{"a" * 201}"}}', "$.agent", "1 to 200"),
    "agent blank": ('{"input": 1, "agent": "  "}', "$.agent", "blank"),
    "agent with NUL": ('{"input": 1, "agent": "\\u0000"}', "$.agent", "NUL"),
    "session no UUID": ('{"input": 1, "session_id": "x"}', "$.session_id", "must be a UUID"),
    "session a list": ('{"input": 1, "session_id": []}', "$.session_id", "a UUID, not an array"),
    "metadata a list": ('{"input": 1, "metadata": []}', "$.metadata", "object of strings"),
    "metadata value": ('{"input": 1, "metadata": {"a": 1}}', "$.metadata.a", "must be a string"),
    "metadata long": (
        f'{{"input": 1, "metadata": {{"a": "{"x" * 513}"}}}}',
        "$.metadata.a",
        "0 to 512",
    ),
    "metadata long key": (
        f'{{"input": 1, "metadata": {{"{"k" * 65}": ""}}}}',
        "$.metadata (a key)",
        "1 to 64",
    ),
    "metadata 17 pairs": (
        json.dumps({"input": 1, "metadata": {str(i): "" for i in range(17)}}),
        "$.metadata",
        "at most 16 pairs; it has 17",
    ),
    "on_conflict": ('{"input": 1, "on_conflict": "wait"}', "$.on_conflict", "must be one of queue"),
    "no attempts": ('{"input": 1, "max_attempts": 0}', "$.max_attempts", "from 1 to 100"),
    "true attempts": ('{"input": 1, "max_attempts": true}', "$.max_attempts", "not a boolean"),
    "1.5 attempts": ('{"input": 1, "max_attempts": 1.5}', "$.max_attempts", "whole number"),
    "time-out 0": ('{"input": 1, "timeout_s": 0}', "$.timeout_s", "from 0.1 to 604800"),
    "delay below 0": ('{"input": 1, "delay_s": -1}', "$.delay_s", "from 0 to 31536000"),
    "delay a string": ('{"input": 1, "delay_s": "5"}', "$.delay_s", "must be a number"),
    "naive time": ('{"input": 1, "run_at": "2026-01-31T08:00:00"}', "$.run_at", "its zone"),
    "a day": ('{"input": 1, "deadline": "2026-01-31"}', "$.deadline", "its zone"),
    "no such day": ('{"input": 1, "run_at": "2026-02-30T08:00:00Z"}', "$.run_at", "a time like"),
    "year 0": ('{"input": 1, "run_at": "0000-01-01T00:00:00Z"}', "$.run_at", "a time like"),
    "before year 1": ('{"input": 1, "run_at": "0001-01-01T00:00:00+14:00"}', "$.run_at", "a time"),
    "time a number": ('{"input": 1, "run_at": 1767225600}', "$.run_at", "not a number"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_bad_field_is_named_with_its_limit(name: str) -> None:
    """Protects: every refusal says which field it is about and what would be right."""
    text, field, words = BAD_FIELDS[name]
    fields, faults = checked(text.encode())
    assert fields is None
    assert [fault.field for fault in faults] == [field]
    assert words in faults[0].message


@pytest.mark.parametrize(
    "text",
    [
        '{"input": "对比 pgvector 与 Qdrant"}',
        '{"input": {"question": "q", "k": [1, 2.5, true, null, -0.0, 1e-400]}}',
        '{"input": ' + "[" * 32 + "]" * 32 + "}",
        f'{{"input": [{2**63 - 1}, {-(2**63) + 1}]}}',
        '{"input": "\\ud83d\\ude00", "max_attempts": 3.0}',
        '{"input": false, "metadata": null, "agent": null, "deadline": null}',
        '{"input": 0, "run_at": "2026-01-31t08:00:00.123456+08:00", "metadata": {"k": ""}}',
    ],
)
def test_what_is_right_is_taken(text: str) -> None:
    """Protects: the limits themselves are allowed, and null is the same as nothing."""
    fields, faults = checked(text.encode())
    assert faults == []
    assert fields.keys() == NEW_RUN.fields.keys()


def test_all_faults_are_told_at_once_and_too_large_alone_is_413() -> None:
    """Protects: a caller mends everything in one go; the status fits what is wrong."""
    _, faults = checked(b'{"agent": 1, "queue": 2, "x": 3}')
    problem = refuse(faults)
    assert {fault.field for fault in problem.faults} == {"$.x", "$.input", "$.agent", "$.queue"}
    assert problem.status == 422
    assert refuse([Fault("$.input", "long", "too_large")]).status == 413
    assert refuse([Fault("$.input", "long", "too_large"), faults[0]]).status == 422


def test_a_hundred_thousand_unknown_fields_are_counted_and_not_guessed_at() -> None:
    """Protects: what each of them might have meant is looked for only as long as somebody is shown
    it; a body of four megabytes would else hold up the api for seconds."""
    _, faults = checked(
        json.dumps({"input": 1, **{f"agnt{n}": 1 for n in range(100_000)}}).encode()
    )
    assert {fault.code for fault in faults} == {"unknown_field"}
    assert len(faults) == 100_000
    assert sum("did you mean agent?" in fault.message for fault in faults) == MAX_FAULTS


def test_a_batch_names_the_run_that_is_wrong() -> None:
    """Protects: among a thousand runs the bad one is found."""
    faults: list[Fault] = []
    NEW_RUNS.check({"runs": [{"input": 1}, {"input": ""}]}, "$", faults)
    assert [fault.field for fault in faults] == ["$.runs[1].input"]
    for count, good in ((0, False), (1, True), (1000, True), (1001, False)):
        assert (faults_of(NEW_RUNS, {"runs": [{"input": 1}] * count}) == []) is good


@given(st.text(max_size=300))
def test_any_header_is_a_key_or_none(text: str) -> None:
    """Protects: a key is 1 to 255 visible characters, whatever was sent."""
    key = idempotency.read_key(text)
    if key is not None:
        assert 1 <= len(key) <= 255
        assert set(key) <= set(string.printable.strip())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("abc-1", "abc-1"),
        ('"abc-1"', "abc-1"),
        (' "abc" ', "abc"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ("k" * 255, "k" * 255),
        ("k" * 256, None),
        ('"' + "k" * 256 + '"', None),
        ("", None),
        ('""', None),
        ("a b", None),
        ('"a b"', None),
        ('"abc', None),
        ("schlüssel", None),
        ("a\tb", None),
    ],
)
def test_keys_are_read_bare_and_quoted(text: str, key: str | None) -> None:
    """Protects: the quoted and the bare form of a key are one key (draft-07, RFC 8941)."""
    assert idempotency.read_key(text) == key


QUERY = (
    Param("limit", Whole(1, 200), "", 50),
    Param("wait", Number(0, 60), "", 0.0),
    Param("at", Moment(), ""),
    Param("id", Id(), ""),
    Param("name", Text(1, 5), ""),
)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"limt=5", "limt"),
        (b"limit=", "limit"),
        (b"limit=0", "limit"),
        (b"limit=201", "limit"),
        (b"limit=1e2", "limit"),
        (b"limit=%D9%A1", "limit"),
        (b"limit=" + b"9" * 5000, "limit"),
        (b"limit=5&limit=6", "limit"),
        (b"wait=abc", "wait"),
        (b"wait=-1", "wait"),
        (b"wait=61", "wait"),
        (b"wait=nan", "wait"),
        (b"wait=1_0", "wait"),
        (b"at=2026-01-31", "at"),
        (b"at=2026-01-31T08:00:00+08:00", "at"),
        (b"id=x", "id"),
        (b"name=%00", "name"),
        (b"name=toolong", "name"),
        (b"name", "name"),
    ],
)
def test_a_bad_parameter_is_named(raw: bytes, field: str) -> None:
    """Protects: nothing in a URL is ignored or guessed."""
    faults: list[Fault] = []
    read_query(QUERY, raw, faults)
    assert [fault.field for fault in faults] == [field]


def test_good_parameters_are_read_and_defaults_hold() -> None:
    """Protects: what a handler gets is typed."""
    faults: list[Fault] = []
    raw = b"wait=2.5&at=2026-01-31T08:00:00%2B08:00"
    found = read_query(QUERY, raw, faults)
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    assert found == {"limit": 50, "wait": 2.5, "at": moment, "id": None, "name": None}
    assert faults == []


@pytest.mark.parametrize("raw", [b"a=%ff", b"\xff=1", b"&".join([b"a=1"] * 60)])
def test_a_broken_query_is_refused(raw: bytes) -> None:
    """Protects: bytes that are no text, and a thousand parameters, are a 4xx."""
    with pytest.raises(Problem) as caught:
        read_query(QUERY, raw, [])
    assert caught.value.status == 422


def test_a_plus_that_became_a_space_is_explained() -> None:
    """Protects: the commonest mistake with times in URLs gets its own sentence."""
    faults: list[Fault] = []
    read_query(QUERY, b"at=2026-01-31T08:00:00+08:00", faults)
    assert "%2B" in faults[0].message


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("no", field="x"), 422),
        (BadInput("no", code="a_code_of_tomorrow"), 422),
        (NotFound("no"), 404),
        (TooLarge("no"), 413),
        (Busy("no"), 503),
        (Unavailable("secret host"), 503),
        (ZeroDivisionError("secret"), 500),
    ],
)
def test_errors_become_problems_without_secrets(error: Exception, status: int) -> None:
    """Protects: each error of the house has its status; unexpected text stays here."""
    body = json.loads(bytes(respond(of_error(error), "id-1").body))
    assert body["status"] == status
    assert body["request_id"] == "id-1"
    assert "secret" not in json.dumps(body)


def test_a_problem_is_cut_and_cleaned() -> None:
    """Protects: a field name of a megabyte, or of surrogates, does not come back whole."""
    faults = [Fault("\ud800" + "x" * 1_000_000, "bad")] * 1000
    body = bytes(respond(refuse(faults), "r").body)
    assert len(body) < 20_000
    assert len(json.loads(body)["errors"]) == 50


@pytest.mark.parametrize("kind", [Json(3), Pairs(2, 3, 4), Text(), Id(), Moment()])
def test_flaws_are_refused_wherever_they_stand(kind: Kind) -> None:
    """Protects: what the parser marks is never taken for a value."""
    [fault] = faults_of(kind, bodies.parse(b"NaN"))
    assert "NaN" in fault.message


def test_the_description_has_every_route_and_every_schema_is_sound() -> None:
    """Protects: /openapi.json is made of the tables that route, and is valid JSON Schema."""
    document = openapi.document(OPERATIONS)
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    routed = {(o.method, path) for o in OPERATIONS for path in (o.path, *o.aliases)}
    assert described == routed
    names = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(names) == len(set(names))
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert name and json.dumps(schema)


def test_every_reference_of_the_description_leads_somewhere() -> None:
    """Protects: a generated client finds every schema that is named."""
    text = json.dumps(openapi.document(OPERATIONS))
    named = set(part.split('"')[0] for part in text.split('"#/components/schemas/')[1:])
    assert named <= set(openapi.schemas())


def test_every_status_of_the_description_has_a_problem_code() -> None:
    """Protects: no operation announces a refusal that has no code."""
    statuses = {status for status, _ in PROBLEMS.values()}
    assert {status for o in OPERATIONS for status in o.problems} <= statuses

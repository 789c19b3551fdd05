"""core: text that Postgres takes, ids, waits, errors, settings. No I/O, so nothing to wait for."""

import random
import uuid
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researchcopilot.core import errors, settings
from researchcopilot.core.backoff import full_jitter, reconnect_delays
from researchcopilot.core.errors import ConfigError, ResearchCopilotError
from researchcopilot.core.ids import new_id, parse_id
from researchcopilot.core.text import clean_json, clean_text, dumps, forbidden_in, walk

_any_text = st.text(st.characters(codec=None), max_size=30)


# Text


@given(_any_text, st.none() | st.integers(0, 40))
def test_clean_text_has_nothing_forbidden_and_is_within_its_limit(
    text: str, limit: int | None
) -> None:
    clean = clean_text(text, limit)
    assert forbidden_in(clean) is None
    clean.encode()
    assert limit is None or len(clean) <= max(limit, 1)
    if forbidden_in(text) is None and (limit is None or len(text) <= limit):
        assert clean == text


def test_what_is_forbidden_is_named() -> None:
    assert forbidden_in("a\x00") == "NUL (U+0000)"
    assert forbidden_in("\udc80x") == "a lone surrogate (U+DC80)"
    assert forbidden_in("\U0001f600 é") is None


def test_clean_json_cleans_keys_and_leaves_the_rest() -> None:
    value = {"a\x00": ["\ud800", 1, None, True, 1.5, ("t",)]}
    assert clean_json(value) == {"a\ufffd": ["\ufffd", 1, None, True, 1.5, ["t"]]}


def test_walk_tells_every_place_and_goes_into_a_circle_once() -> None:
    value: dict[str, Any] = {"a": [1, {"b": 2}]}
    assert [path for path, _ in walk(value)] == ["$", "$.a", "$.a[1]", "$.a[1].b", "$.a[0]"]
    value["me"] = value
    assert len(list(walk(value))) == 6


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_dumps_refuses_what_jsonb_has_no_place_for(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps([number])
    assert dumps({"ä": [1, "中"]}) == '{"ä":[1,"中"]}'


# Ids


def test_ids_are_uuids_of_version_7_in_the_order_of_time() -> None:
    found = [new_id() for _ in range(1000)]
    assert len(set(found)) == 1000
    assert [id_[:13] for id_ in found] == sorted(id_[:13] for id_ in found)
    for id_ in found[:10]:
        parsed = uuid.UUID(id_)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, id_)


def test_ids_are_read_in_any_form_and_given_back_in_one() -> None:
    id_ = new_id()
    for text in (id_, id_.upper(), id_.replace("-", "")):
        assert parse_id(text) == id_
    for text in ("", "x" * 36, id_ + "0", id_[:-1], f"{{{id_}}}", f" {id_}"):
        assert parse_id(text) is None


# Waits


@given(st.integers(1, 10_000), st.floats(0, 0.999999))
def test_a_retry_waits_within_its_cap(attempt: int, rand: float) -> None:
    delay = full_jitter(attempt, base=2.0, cap=600.0, rand=rand)
    assert 0 <= delay <= 600
    assert delay <= 2.0 * 2.0 ** min(attempt - 1, 60)


def test_the_ceiling_doubles_from_the_base() -> None:
    ceilings = [full_jitter(n, base=2.0, cap=20.0, rand=1.0) for n in (1, 2, 3, 4, 5)]
    assert ceilings == [2.0, 4.0, 8.0, 16.0, 20.0]


def test_reconnects_wait_longer_and_longer_up_to_two_seconds() -> None:
    random.seed(1)
    delays = list(islice(reconnect_delays(), 12))
    assert 0.025 <= delays[0] <= 0.05
    assert all(1.0 <= delay <= 2.0 for delay in delays[7:])


# Errors


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = {line.split("─ ")[1].split()[0] for line in (errors.__doc__ or "").splitlines()
             if "─ " in line}  # fmt: skip
    made = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, ResearchCopilotError)
        and kind is not ResearchCopilotError
    }
    assert drawn == made


def test_every_error_has_a_sentence_of_its_own() -> None:
    for kind in (errors.Busy, errors.LostClaim, errors.TimedOut, errors.AgentCancelled):
        assert kind().message == (kind.__doc__ or "").strip()
        assert "\n" not in kind().message
        assert kind("other").message == str(kind("other")) == "other"


# Settings


def test_defaults_hold_where_nothing_is_said() -> None:
    found = settings.load({"PATH": "/bin"})
    assert (found.recovery.lease_s, found.recovery.sweep_s, found.recovery.max_losses) == (15, 5, 3)
    assert found.worker.queues == {"runs": 8, "system": 2}


def test_every_setting_is_described_and_its_default_is_accepted() -> None:
    rows = settings.describe()
    assert len({name for name, _, _ in rows}) == len(rows) > 20
    defaults = {name: default for name, default, _ in rows}
    assert settings.load(defaults) == settings.load({})
    assert all(doc for _, _, doc in rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RC_LEASE_SECONDS", "nan"), ("RC_LEASE_SECONDS", "inf"), ("RC_LEASE_SECONDS", ""),
        ("RC_LEASE_SECONDS", "-1"), ("RC_HEALTH_PORT", "8080.0"), ("RC_HEALTH_PORT", "８080"),
        ("RC_HEALTH_PORT", "-1"), ("RC_WORKER_QUEUES", ""), ("RC_WORKER_QUEUES", "runs"),
        ("RC_WORKER_QUEUES", "runs=1,runs=2"), ("RC_WORKER_QUEUES", "a b=1"),
        ("RC_WORKER_QUEUES", "runs=²"), ("RC_WORKER_QUEUES", "runs=1001"),
        ("RC_WORKER_QUEUES", "a:b=1"), ("RC_REDIS_URL", "localhost"), ("RC_LOG_LEVEL", "INFO"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_would_be_right(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings.load({name: value})
    message = str(refused.value)
    assert message.startswith(f"{name}={value!r} is not right: give ")
    assert "invalid literal" not in message and "could not convert" not in message


def test_a_typo_is_told_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean RC_DRAIN_SECONDS"):
        settings.load({"RC_DRAIN_SECOND": "3"})
    with pytest.raises(ConfigError, match="settings"):
        settings.load({"RC_XYZZY": "3"})

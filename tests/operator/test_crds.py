"""The schemas of ResearchRun and RunSchedule: what they refuse, and that they say what the api
says."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.chart.engine import ROOT, validate
from tests.operator.crd import RULES, Json, admitted, crds, schema_of

from researchcopilot.agents.new_runs import NEW_RUN
from researchcopilot.agents.new_schedules import NEW_SCHEDULE
from researchcopilot.core.fields import Body
from researchcopilot.operator.spec import RUN_FIELDS, SCHEDULE_FIELDS
from researchcopilot.operator.status import ENDED, PENDING, PHASES

RUNS, SCHEDULES = "researchruns", "runschedules"


def run(**spec: Any) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"input": "why?", **spec}}


def schedule(**spec: Any) -> Json:
    if not {"cron", "intervalSeconds"} & spec.keys():
        spec["cron"] = "0 8 * * *"
    return run(**spec)


def nodes(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


@pytest.mark.parametrize("plural", [RUNS, SCHEDULES])
def test_every_field_is_explained_and_the_schema_is_structural(plural: str) -> None:
    validate(crds()[plural], "1.37")
    for path, node in nodes(schema_of(plural)):
        if path == ".metadata":
            assert node == {"type": "object"}, "Kubernetes takes nothing else here"
            continue
        assert node.get("description"), f"kubectl explain has nothing to say of {path}"
        assert "type" in node or node.get("x-kubernetes-preserve-unknown-fields"), path
        if node.get("type") == "array":
            assert node["maxItems"], f"{path}: rules over it would be too dear"


@pytest.mark.parametrize("plural", [RUNS, SCHEDULES])
def test_what_kubectl_lists_is_in_the_schema(plural: str) -> None:
    [version] = crds()[plural]["spec"]["versions"]
    known = {path for path, _ in nodes(schema_of(plural))}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[")[0]
        assert path in known or path == ".metadata.creationTimestamp", column
    assert version["subresources"] == {"status": {}}


@pytest.mark.parametrize(
    ("plural", "body", "names", "more"),
    [
        (RUNS, NEW_RUN, RUN_FIELDS, {"ttlSecondsAfterFinished"}),
        (SCHEDULES, NEW_SCHEDULE, SCHEDULE_FIELDS, {"suspend"}),
    ],
)
def test_the_bounds_are_those_of_the_api(
    plural: str, body: Body, names: dict[str, str], more: set[str]
) -> None:
    spec = schema_of(plural)["properties"]["spec"]["properties"]
    assert spec.keys() == names.keys() | more
    assert set(names.values()) == body.fields.keys() - {"name"}
    for ours, theirs in names.items():
        kind = body.fields[theirs].kind.schema()
        for bound in ("minimum", "maximum", "minLength", "maxLength", "enum", "maxProperties"):
            if bound in kind and kind.get("format") != "uuid":
                assert spec[ours].get(bound) == kind[bound], f"{ours}: {bound}"
        if "type" in kind:
            assert spec[ours]["type"] == kind["type"], ours
        default = body.fields[theirs].default
        assert spec[ours].get("default", default) == default


def test_the_phases_are_those_that_are_written() -> None:
    status = schema_of(RUNS)["properties"]["status"]["properties"]
    assert set(status["phase"]["enum"]) == {PENDING, *PHASES.values()} >= ENDED
    status = schema_of(SCHEDULES)["properties"]["status"]["properties"]
    assert set(status["lastRunPhase"]["enum"]) == set(PHASES.values())


GOOD_RUNS = [
    run(),
    run(input={"question": "why?", "deep": [1, {"a": None}]}),
    run(runAt="2026-12-01T08:00:00Z", deadline="2026-12-01T09:00:00+00:00"),
    run(delaySeconds=0, maxAttempts=100, timeoutSeconds=0.1, ttlSecondsAfterFinished=0),
    run(metadata={"team": "search"}, onConflict="cancel_previous"),
]
GOOD_SCHEDULES = [
    schedule(),
    schedule(intervalSeconds=1, jitterSeconds=1),
    schedule(misfire="all", overlap="allow"),
    schedule(misfire="all"),
    schedule(startsAt="2026-12-01T08:00:00Z", endsAt="2026-12-02T08:00:00Z", suspend=True),
]
BAD = [
    (RUNS, {"metadata": {"name": "a"}, "spec": {}}, "input"),
    (RUNS, {"metadata": {"name": "a"}}, "spec"),
    (RUNS, run(input="x" * 262_145), "too long"),
    (RUNS, run(agent=""), "agent"),
    (RUNS, run(agent=7), "agent"),
    (RUNS, run(onConflict="Queue"), "onConflict"),
    (RUNS, run(maxAttempts=0), "maxAttempts"),
    (RUNS, run(maxAttempts=1.5), "maxAttempts"),
    (RUNS, run(timeoutSeconds=604_801), "timeoutSeconds"),
    (RUNS, run(sessionId="the same"), "sessionId"),
    (RUNS, run(runAt="tomorrow"), "runAt"),
    (RUNS, run(metadata={"a": 1}), "metadata"),
    (RUNS, run(metadata={str(n): "x" for n in range(17)}), "metadata"),
    (RUNS, run(metadata={"": "x"}), "keys of 1 to 64"),
    (RUNS, run(metadata={"x" * 65: "x"}), "keys of 1 to 64"),
    (RUNS, run(runAt="2026-12-01T08:00:00Z", delaySeconds=1), "exclude each other"),
    (
        RUNS,
        run(runAt="2026-12-01T08:00:00Z", deadline="2026-12-01T08:00:00Z"),
        "later than runAt",
    ),
    (RUNS, run(ttlSecondsAfterFinished=-1), "ttlSecondsAfterFinished"),
    (SCHEDULES, run(), "exactly one"),
    (SCHEDULES, schedule(cron="* * * * *", intervalSeconds=5), "exactly one"),
    (SCHEDULES, schedule(intervalSeconds=0.5), "intervalSeconds"),
    (SCHEDULES, schedule(intervalSeconds=5, jitterSeconds=6), "not be longer"),
    (SCHEDULES, schedule(misfire="all", overlap="skip"), "must be allow"),
    (SCHEDULES, schedule(misfire="never"), "misfire"),
    (
        SCHEDULES,
        schedule(startsAt="2026-12-01T08:00:00Z", endsAt="2026-11-01T08:00:00Z"),
        "later than startsAt",
    ),
    (SCHEDULES, {**schedule(), "metadata": {"name": "a" * 64}}, "at most 63"),
]


@pytest.mark.parametrize(
    ("plural", "body"),
    [*((RUNS, body) for body in GOOD_RUNS), *((SCHEDULES, body) for body in GOOD_SCHEDULES)],
)
def test_what_can_be_asked_for_is_admitted(plural: str, body: Json) -> None:
    stored, wrong = admitted(plural, body)
    assert wrong == []
    assert stored["spec"]["input"] == body["spec"]["input"]
    assert stored["spec"]["agent"] == body["spec"].get("agent", "research")


@pytest.mark.parametrize(("plural", "body", "words"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_what_can_be_refused_by_the_schema_is(plural: str, body: Json, words: str) -> None:
    _, wrong = admitted(plural, body)
    assert any(words in one for one in wrong), wrong


def test_no_rule_is_one_that_nothing_breaks() -> None:
    """Each has a case above that it refuses: a rule that was never seen to refuse is none."""
    messages = {
        rule["message"]
        for plural in (RUNS, SCHEDULES)
        for _, node in nodes(schema_of(plural))
        for rule in node.get(RULES, ())
    }
    seen = {one for plural, body, _ in BAD for one in admitted(plural, body)[1]}
    assert {text for text in messages if not any(text in one for one in seen)} == set()


def test_unknown_fields_are_dropped_as_kubernetes_does() -> None:
    stored, wrong = admitted(RUNS, {**run(colour="red"), "more": 1, "status": {"phase": "Queued"}})
    assert wrong == []
    assert "colour" not in stored["spec"]
    assert "more" not in stored


def test_the_examples_are_admitted() -> None:
    for name in ("research-run.yaml", "run-schedule.yaml"):
        for body in yaml.safe_load_all((ROOT / "k8s/examples" / name).read_text()):
            plural = f"{body['kind'].lower()}s"
            assert crds()[plural]["spec"]["names"]["kind"] == body["kind"]
            kept, wrong = admitted(plural, body)
            assert wrong == []
            assert kept["spec"].keys() >= body["spec"].keys(), "a field that does not exist"

"""Workers: who decides how many there are, what a pool says, how long they may drain."""

from typing import Any

from tests.chart.conftest import Render
from tests.chart.engine import Object, containers, environment, of_kind
from tests.chart.matrix import POOLS

DEFAULT = "rc-researchcopilot-worker-default"
LARGE = "rc-researchcopilot-worker-large"
BY_METRIC = "rc-researchcopilot-worker-by-metric"


def workers(chart: Render, **worker: Any) -> dict[str, Object]:
    found = of_kind(chart({"worker": worker}), "Deployment")
    return {name: one for name, one in found.items() if "-worker-" in name}


def test_replicas_are_nobody_s_unless_asked_for(chart: Render) -> None:
    """Rendered, it would undo `kubectl scale`, or fail the upgrade under server-side apply."""
    assert "replicas" not in workers(chart)[DEFAULT]["spec"]
    assert "replicas" not in workers(chart, replicas=None)[DEFAULT]["spec"]


def test_replicas_that_are_asked_for_count_at_the_first_installation(chart: Render) -> None:
    assert workers(chart, replicas=4)[DEFAULT]["spec"]["replicas"] == 4
    assert workers(chart, replicas=0)[DEFAULT]["spec"]["replicas"] == 0
    enforced = workers(chart, replicas=4, replicasPolicy="enforce")
    assert enforced[DEFAULT]["spec"]["replicas"] == 4


def test_an_autoscaled_pool_has_no_replicas(chart: Render) -> None:
    found = of_kind(chart(POOLS), "Deployment")
    assert "replicas" not in found[LARGE]["spec"]
    assert "replicas" not in found[BY_METRIC]["spec"]
    api = {"api": {"autoscaling": {"enabled": True, "min": 2, "max": 3, "cpuPercent": 50}}}
    assert "replicas" not in of_kind(chart(api), "Deployment")["rc-researchcopilot-api"]["spec"]


def test_what_a_pool_says_replaces_what_all_say_also_with_zero_and_false(chart: Render) -> None:
    objects = chart(POOLS)
    spec = of_kind(objects, "Deployment")[LARGE]["spec"]["template"]["spec"]
    told = environment(spec["containers"][0])
    assert told["RC_DRAIN_SECONDS"] == "0"
    assert told["RC_WORKER_QUEUES"] == "reports=1"
    assert spec["terminationGracePeriodSeconds"] == 15
    assert spec["containers"][0]["image"] == "acme/agents@sha256:" + "a" * 64
    assert LARGE not in of_kind(objects, "PodDisruptionBudget")
    other = of_kind(objects, "Deployment")[DEFAULT]["spec"]["template"]["spec"]
    assert other["terminationGracePeriodSeconds"] == 60 + 15


def test_the_grace_period_covers_the_drain(chart: Render) -> None:
    for spec in (one["spec"]["template"]["spec"] for one in workers(chart).values()):
        told = environment(spec["containers"][0])
        assert spec["terminationGracePeriodSeconds"] > float(told["RC_DRAIN_SECONDS"])


def test_keda_asks_for_desired_workers_of_this_pool(chart: Render) -> None:
    spec = of_kind(chart(POOLS), "ScaledObject")[LARGE]["spec"]
    [trigger] = spec["triggers"]
    assert trigger["metadata"] == {
        "url": "http://rc-researchcopilot-janitor.default:9090/metrics/queue/large"
        "?queues=reports%3D1",
        "valueLocation": "desired_workers",
        "targetValue": "1",
    }
    assert spec["scaleTargetRef"]["name"] == LARGE
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"


def test_an_hpa_wants_one_worker_for_each_slots_of_load(chart: Render) -> None:
    spec = of_kind(chart(POOLS), "HorizontalPodAutoscaler")[BY_METRIC]["spec"]
    [metric] = spec["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "4"}
    assert metric["external"]["metric"]["name"] == "researchcopilot_queue_load"


def test_a_migration_job_is_new_whenever_anything_of_it_is(chart: Render) -> None:
    """A Job cannot be changed: under the same name an upgrade would fail."""

    def name(values: dict[str, Any], **options: Any) -> str:
        [found] = of_kind(chart(values, **options), "Job")
        return found

    same: dict[str, Any] = {"apiKey": {"existingSecret": "app-key"}}
    assert name(same) == name(same, is_upgrade=True, revision=7)
    others: list[dict[str, Any]] = [
        {"image": {"tag": "9.9.9"}},
        {"settings": {"LOG_LEVEL": "debug"}},
        {"migrations": {"resources": {"requests": {"cpu": "1m"}, "limits": {"memory": "1Gi"}}}},
        {"commonLabels": {"a": "b"}},
    ]
    names = [name(same), *(name({**same, **other}) for other in others)]
    assert len(set(names)) == len(names)


def test_the_job_migrates_before_it_makes_the_key(chart: Render) -> None:
    [job] = of_kind(chart(), "Job").values()
    commands = [one["args"][0] for one in containers(job["spec"]["template"])]
    assert commands == ["doctor", "migrate", "ensure-key"]
    assert "annotations" not in job["metadata"], "no hook: it would wait for what waits for it"


def test_services_wait_for_the_schema_and_say_so(chart: Render) -> None:
    for one in of_kind(chart(), "Deployment").values():
        [wait] = one["spec"]["template"]["spec"]["initContainers"]
        assert wait["args"] == ["doctor", "--only", "database,schema", "--wait", "600"]


def test_pods_are_rolled_when_settings_or_secrets_change(chart: Render) -> None:
    def marks(values: dict[str, Any], **options: Any) -> dict[str, str]:
        api = of_kind(chart(values, **options), "Deployment")["rc-researchcopilot-api"]
        found: dict[str, str] = api["spec"]["template"]["metadata"]["annotations"]
        return found

    assert marks({}) == marks({}, revision=2)
    assert marks({}) != marks({"settings": {"LEASE_SECONDS": 3}})
    assert marks({}) != marks({"apiKey": {"value": "rc_" + "k" * 43}})

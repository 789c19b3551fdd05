"""Values that are wrong or contradict fail the render, with the value and the reason."""

from typing import Any

import helm_python
import pytest
from tests.chart.conftest import Render
from tests.chart.matrix import URLS

SCALED = {"enabled": True, "kind": "keda", "min": 1, "max": 3}
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a typo": ({"worker": {"replcas": 3}}, ["/worker", "replcas"]),
    "a typo in a pool": (
        {"worker": {"pools": {"default": {"queue": {"runs": 1}}}}},
        ["/worker/pools/default", "queue"],
    ),
    "negative replicas": ({"api": {"replicas": -1}}, ["/api/replicas", "-1"]),
    "replicas in words": ({"worker": {"replicas": "three"}}, ["/worker/replicas", "string"]),
    "no slots": (
        {"worker": {"pools": {"default": {"queues": {"runs": 0}}}}},
        ["/worker/pools/default/queues/runs"],
    ),
    "a setting that is none": ({"settings": {"LEASE_SECOND": 3}}, ["/settings", "LEASE_SECOND"]),
    "a setting of the chart's": ({"settings": {"REDIS_URL": "x"}}, ["/settings", "REDIS_URL"]),
    "a URL of another kind": (
        {"externalDatabase": {"url": "mysql://x"}},
        ["/externalDatabase/url", "mysql"],
    ),
    "a key that is none": ({"apiKey": {"value": "secret"}}, ["/apiKey/value"]),
    "two databases": (
        {"externalDatabase": {"existingSecret": "db"}},
        ["postgresql.enabled", "externalDatabase"],
    ),
    "no database": ({"postgresql": {"enabled": False}}, ["no database"]),
    "two Redis": (
        {"externalRedis": {"url": "redis://x"}},
        ["valkey.enabled", "externalRedis"],
    ),
    "no Redis": ({"valkey": {"enabled": False}}, ["no Redis"]),
    "a URL twice": (
        {
            "postgresql": {"enabled": False},
            "externalDatabase": {"url": "postgresql://x", "existingSecret": "db"},
        },
        ["externalDatabase.url", "externalDatabase.existingSecret"],
    ),
    "bundled servers in production": (
        {"production": True},
        ["production is true", "postgresql.enabled", "valkey.enabled"],
    ),
    "a certificate for the bundled database": (
        {"externalDatabase": {"caSecret": "ca"}},
        ["postgresql.enabled", "externalDatabase"],
    ),
    "a certificate for the bundled Redis": (
        {"externalRedis": {"caSecret": "ca"}},
        ["valkey.enabled", "externalRedis"],
    ),
    "a key that nobody would put in": (
        {"apiKey": {"create": False, "existingSecret": "key"}},
        ["apiKey.create is false"],
    ),
    "a server behind a closed port": (
        {
            **URLS,
            "externalDatabase": {"url": "postgresql://rc@[fd00::1]:6432/rc"},
            "networkPolicy": {"enabled": True, "egress": {"enabled": True}},
        },
        ["externalDatabase.url has the port 6432", "externalRedis.url has the port 6380"],
    ),
    "parts with prefixes of their own": (
        {"worker": {"settings": {"REDIS_PREFIX": "a:"}}},
        ["worker.settings.REDIS_PREFIX", "settings.REDIS_PREFIX"],
    ),
    "an operator with a lease of its own": (
        {"operator": {"settings": {"LEASE_SECONDS": 60}}},
        ["operator.settings.LEASE_SECONDS", "settings.LEASE_SECONDS"],
    ),
    "a pool with a lease of its own": (
        {
            "worker": {
                "pools": {
                    "default": {
                        "queues": {"runs": 1, "system": 1},
                        "settings": {"LEASE_SECONDS": 60},
                    }
                }
            }
        },
        ["worker.pools.default.settings.LEASE_SECONDS"],
    ),
    "no pools": ({"worker": {"pools": {"default": None}}}, ["/worker/pools"]),
    "no time to hand back": ({"worker": {"drainMargin": 0}}, ["/worker/drainMargin"]),
    "an ingress to nothing": (
        {"api": {"enabled": False, "ingress": {"enabled": True, "hosts": ["a"]}}},
        ["api.ingress.enabled is true, but api.enabled is false"],
    ),
    "no API key in production": ({"production": True}, ["there is no API key"]),
    "latest in production": (
        {"production": True, "image": {"tag": "latest"}},
        ["image.tag is latest"],
    ),
    "a pool that is scaled by two": (
        {"worker": {"pools": {"default": {"queues": {"runs": 1, "system": 1}, "replicas": 2,
                                          "autoscaling": SCALED}}}},
        ["worker.pools.default", "replicas (2)", "autoscaling.enabled"],
    ),
    "two pools that both scale for one queue": (
        {
            "worker": {
                "pools": {
                    "a": {"queues": {"runs": 1, "system": 1}, "autoscaling": SCALED},
                    "b": {"queues": {"runs": 1}, "autoscaling": SCALED},
                    "default": None,
                }
            }
        },
        ["worker.pools.a", "worker.pools.b", "queue runs"],
    ),
    "min over max": (
        {"worker": {"autoscaling": {**SCALED, "min": 9}}},
        ["min (9)", "max (3)"],
    ),
    "an HPA to zero": (
        {"worker": {"autoscaling": {**SCALED, "kind": "hpa", "min": 0}}},
        ["min 0 needs kind keda"],
    ),
    "nobody serves a queue": (
        {"worker": {"pools": {"default": {"queues": {"runs": 1, "system": None}}}}},
        ["serves the queue system"],
    ),
    "nobody to ask": (
        {"janitor": {"enabled": False}, "worker": {"autoscaling": SCALED}},
        ["janitor.enabled is false"],
    ),
    "rights to the cluster for nothing": (
        {"operator": {"enabled": True, "clusterWide": True, "customResources": False}},
        ["operator.clusterWide is true", "nothing to do there"],
    ),
    "rights for everybody": (
        {"operator": {"enabled": True, "serviceAccount": {"create": False}}},
        ["operator.serviceAccount.create is false", "every Pod of the namespace"],
    ),
    "a setting of the operator's": (
        {"operator": {"settings": {"OPERATOR_NAMESPACE": "x"}}},
        ["/operator/settings", "OPERATOR_NAMESPACE"],
    ),
    "an ingress to nowhere": ({"api": {"ingress": {"enabled": True}}}, ["api.ingress.hosts"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_with_the_reason(chart: Render, name: str) -> None:
    values, words = WRONG[name]
    with pytest.raises(helm_python.HelmError) as refused:
        chart(values)
    for word in words:
        assert word in str(refused.value)


def test_several_contradictions_are_told_at_once(chart: Render) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        chart({"production": True, "api": {"ingress": {"enabled": True}}})
    assert str(refused.value).count("\n  - ") == 4

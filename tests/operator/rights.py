"""What the operator asks of the API server, held against the rights that the chart gives it.

kmock asks for no rights. So each test of this folder ends with this comparison: a call that a real
API server would refuse is found here.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from tests.chart.engine import load, of_kind, render
from tests.operator.cluster import NAMESPACE

Right = tuple[str, str, str]  # API group, resource or resource/subresource, verb
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


@cache
def granted(*switches: str, kind: str = "Role") -> frozenset[Right]:
    """With these values of `operator` true and its other switches false."""
    known = ("customResources", "deletionCost", "clusterWide")
    operator = {"enabled": True, **{name: name in switches for name in known}}
    found = of_kind(render(load(), {"operator": operator}), kind)
    return frozenset(
        (group, resource, verb)
        for role in found.values()
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def used(asked: Iterable[Any]) -> set[Right]:
    """Discovery is left out: every account may read that."""
    found = set()
    for request in asked:
        if request.resource is None or request.resource.plural is None:
            continue
        resource = request.resource.plural
        if request.subresource:
            resource += f"/{request.subresource}"
        method = request.method.value.upper()
        if method == "GET":
            read = "watch" if "watch" in request.params else "list"
            verb = "get" if request.name else read
        else:
            verb = VERBS[method]
        found.add((request.resource.group or "", resource, verb))
    return found


def check(asked: Iterable[Any], *, wide: bool = False) -> None:
    """All that was asked may be asked, where everything is switched on: in its own namespace, or
    (`wide`) also of the whole cluster by what a ClusterRole gives."""
    asked = [request for request in asked if request.resource is not None]
    own = [request for request in asked if request.namespace == NAMESPACE]
    other = [request for request in asked if request.namespace != NAMESPACE]
    excess = used(own) - granted("customResources", "deletionCost")
    switches = ("customResources", "clusterWide")
    excess |= used(other) - (granted(*switches, kind="ClusterRole") if wide else frozenset())
    assert not excess, f"the chart gives no right to {sorted(excess)}"

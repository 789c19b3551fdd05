"""What Pods say when they die, as sequences of states: made after the documentation and the code of
Kubernetes (`synthetic`), or kept from a cluster (`recorded`).

A case is a list of (kind of event, what differs from a Pod that runs and is ready). `said` is what
is to be made of it: a reason for each signal, in order.
"""

from dataclasses import dataclass
from typing import Any

from tests.operator.stage import container

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    events: tuple[tuple[str | None, Json], ...]
    said: tuple[str, ...]
    origin: str = "synthetic"


END = "2026-11-30T12:00:05Z"
BACK = "2026-11-30T12:00:07Z"
DELETED_AT: Json = {"metadata": {"deletionTimestamp": "2026-11-30T12:01:00Z"}}
OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": END}}
ERROR = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": END}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": END}}
LOOPS = {"waiting": {"reason": "CrashLoopBackOff"}}
AGAIN = {"running": {"startedAt": BACK}}


def condition(kind: str, status: str, reason: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason}


def conditions(*found: Json) -> Json:
    return {"status": {"conditions": list(found)}}


# The node controller says so of a Pod whose node does not answer; its containers it does not know.
UNREACHED = conditions(condition("Ready", "False"), condition("ContainersReady", "True"))


def disrupted(reason: str) -> Json:
    ready = condition("Ready", "True"), condition("ContainersReady", "True")
    return conditions(*ready, condition("DisruptionTarget", "True", reason))


def ended(phase: str, reason: str | None = None, **more: Any) -> Json:
    return {"status": {"phase": phase, "reason": reason, **more}}


def with_sidecar(**fields: Any) -> Json:
    own = container(state=AGAIN)["status"]["containerStatuses"]
    return {"status": {"containerStatuses": [{"name": "proxy", **fields}, *own]}}


CASES = [
    # Of apache/airflow#17693: the event says DELETED, the phase still Running.
    Case("deleted while its phase is Running", (("DELETED", {}),), ("pod_deleted",)),
    Case(
        "deleted in order: told, container ended, gone",
        (
            ("MODIFIED", DELETED_AT),
            ("MODIFIED", {**DELETED_AT, **container(state=DONE)}),
            ("DELETED", {**DELETED_AT, **container(state=DONE)}),
        ),
        ("container_died", "pod_deleted"),
    ),
    Case("told to end, and nothing more", (("MODIFIED", DELETED_AT),), ()),
    Case(
        "evicted by its kubelet",
        (
            ("MODIFIED", disrupted("TerminationByKubelet")),
            ("MODIFIED", ended("Failed", "Evicted", message="The node was low on memory.")),
        ),
        ("evicted",),
    ),
    Case(
        "evicted by the eviction API: a drain",
        (
            ("MODIFIED", disrupted("EvictionByEvictionAPI")),
            ("MODIFIED", {**DELETED_AT, **disrupted("EvictionByEvictionAPI")}),
            ("DELETED", {**DELETED_AT, **disrupted("EvictionByEvictionAPI")}),
        ),
        ("evicted",),
    ),
    Case(
        "preempted",
        (("DELETED", {**DELETED_AT, **disrupted("PreemptionByScheduler")}),),
        ("preempted",),
    ),
    Case(
        "its node was lost: the taint manager deletes it",
        (
            ("MODIFIED", conditions(condition("Ready", "False"))),
            ("MODIFIED", disrupted("DeletionByTaintManager")),
            ("DELETED", {**DELETED_AT, **disrupted("DeletionByTaintManager")}),
        ),
        ("node_lost",),
    ),
    Case("collected with its node", (("DELETED", disrupted("DeletionByPodGC")),), ("node_lost",)),
    Case(
        "its node was shut down", (("MODIFIED", ended("Failed", "Terminated")),), ("node_shutdown",)
    ),
    Case(
        "for a reason that we do not know",
        (("MODIFIED", ended("Failed", "Sunspots")),),
        ("pod_ended",),
    ),
    Case("ended well", (("MODIFIED", ended("Succeeded")),), ("pod_ended",)),
    # Of PrefectHQ/prefect#21022.
    Case(
        "OOM: ended, waits, runs again",
        (
            ("MODIFIED", container(state=OOM)),
            ("MODIFIED", container(state=LOOPS, lastState=OOM, restartCount=0)),
            ("MODIFIED", container(state=AGAIN, lastState=OOM, restartCount=1)),
        ),
        ("oom_killed", "oom_killed"),
    ),
    Case(
        "OOM, seen only when it runs again",
        (("MODIFIED", container(state=AGAIN, lastState=OOM, restartCount=1)),),
        ("oom_killed",),
    ),
    Case(
        "OOM of the whole Pod",
        (("MODIFIED", ended("Failed", None, **container(state=OOM)["status"])),),
        ("oom_killed",),
    ),
    Case("ended with an error", (("MODIFIED", container(state=ERROR)),), ("container_died",)),
    Case(
        "in a crash loop when first seen",
        ((None, container(state=LOOPS, lastState=ERROR, restartCount=4)),),
        ("container_died",),
    ),
    Case(
        "restarted, and nobody knows why",
        (("MODIFIED", container(state=AGAIN, restartCount=1)),),
        ("container_died",),
    ),
    # Of PrefectHQ/prefect#19026, #22964: the same again and again.
    Case(
        "each event five times",
        tuple(("MODIFIED", container(state=ERROR)) for _ in range(5))
        + tuple(("DELETED", container(state=ERROR)) for _ in range(5)),
        ("container_died", "pod_deleted"),
    ),
    Case(
        "the wrong way round",
        (("DELETED", {}), ("MODIFIED", DELETED_AT), ("MODIFIED", ended("Failed", "Evicted"))),
        ("pod_deleted", "evicted"),
    ),
    # Of PrefectHQ/prefect#19937: what was before is not told anew.
    Case(
        "listed twice, then added",
        tuple(
            (kind, container(state=AGAIN, lastState=OOM, restartCount=1))
            for kind in (None, None, "ADDED")
        ),
        ("oom_killed",),
    ),
    Case(
        "starts",
        (
            ("ADDED", {"status": {"phase": "Pending", "containerStatuses": None}}),
            ("MODIFIED", container(state={"waiting": {"reason": "ContainerCreating"}})),
            ("MODIFIED", container(state=AGAIN)),
        ),
        (),
    ),
    Case("has no status yet", (("ADDED", {"status": None}),), ()),
    Case(
        "is ready and is not, in turn",
        tuple(
            ("MODIFIED", conditions(condition("Ready", word)))
            for word in ("False", "True", "Unknown", "True")
        ),
        (),
    ),
    Case(
        "another container of it dies",
        (("MODIFIED", with_sidecar(state=OOM, restartCount=3)),),
        (),
    ),
    Case(
        "runs again, and since when is not told",
        (("MODIFIED", container(state={"running": {}}, lastState=OOM, restartCount=1)),),
        (),
    ),
]

"""What a Pod says of the processes in it: pure, from one state of the Pod to at most one signal.

A state, not a history: an event that is missing, comes twice or comes late changes nothing, since
each state is judged for itself, and what follows from a signal is safe to do twice.

Sure are: the Pod is deleted (whatever its phase says: it often still says Running), it has ended,
its container has ended; of a container only what started before its end, since Kubernetes starts
another one in its place. Of a Pod that is only being deleted nothing follows: its worker drains,
and hands back what it has. Not sure, and so believed only of a worker that has also missed a
renewal: the time to drain is over and the Pod is still there; its node does not answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from researchcopilot.core.text import clean_text

Pod = Mapping[str, Any]
CUT = 300
# What a kubelet may need beyond the time that it gives a Pod.
KILL_S = 5.0
# Condition DisruptionTarget → our word, and what it means.
DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "a Pod of a higher priority took its place"),
    "DeletionByTaintManager": ("node_lost", "its node was lost, or tainted"),
    "DeletionByPodGC": ("node_lost", "its node is gone"),
    "EvictionByEvictionAPI": ("evicted", "it was evicted, as in a drain"),
    "TerminationByKubelet": ("evicted", "its node was short of something, or was shut down"),
}
# status.reason of a Pod that has ended → our word.
ENDINGS = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "NodeLost": "node_lost",
    "NodeShutdown": "node_shutdown",
    "Shutdown": "node_shutdown",
    "Terminated": "node_shutdown",
}
REASONS = (
    *sorted({word for word, _ in DISRUPTIONS.values()} | set(ENDINGS.values())),
    "disrupted", "pod_deleted", "pod_ended", "oom_killed", "container_died", "drain_overrun",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owner:
    """What an Event is put on: the Pod's controller, or the Pod if it has none."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A Pod, as the row of a worker knows it."""

    uid: str
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Processes of a Pod are dead: all of them, or (`before`) those that started earlier than the
    container that runs now. `reason` is a word for metrics, `cause` a sentence that has the worker
    before it. Two of one `key` say the same."""

    pod_uid: str
    pod: str
    namespace: str
    reason: str
    cause: str
    owner: Owner
    sure: bool = True
    before: datetime | None = None
    restarts: int = 0

    @property
    def key(self) -> tuple[str, int, str, datetime | None]:
        return self.pod_uid, self.restarts, self.reason, self.before


def read(kind: str | None, pod: Pod, container: str) -> Signal | None:
    """`kind` of the event: ADDED, MODIFIED, DELETED, or None for one that was listed."""
    status = pod.get("status") or {}
    disrupted = _disruption(status)
    own = _container(status, container)
    ended = (own.get("state") or {}).get("terminated")
    if kind == "DELETED":
        if _is_oom(ended):
            return _signal(pod, own, "oom_killed", f"its Pod was deleted, {_exit(ended)}")
        reason, why = disrupted or ("pod_deleted", "")
        return _signal(pod, own, reason, _join("its Pod was deleted", why))
    if status.get("phase") in ("Failed", "Succeeded"):
        return _pod_ended(pod, status, own, disrupted)
    if ended:
        return _ended(pod, own, ended, f"its container ended, {_exit(ended)}")
    return _restarted(pod, own)


def suspect(pod: Pod | None, asked: Asked, container: str, now: datetime) -> list[Signal]:
    """What to think of the Pod of a worker that has missed a renewal; `now` is the API server's.
    None: there is no Pod of that name."""
    if pod is None or pod["metadata"].get("uid") != asked.uid:
        owner = Owner("v1", "Pod", asked.name, asked.uid)
        cause = "its Pod is gone"
        return [Signal(asked.uid, asked.name, asked.namespace, "pod_deleted", cause, owner, False)]
    status = pod.get("status") or {}
    own = _container(status, container)
    found = [read("MODIFIED", pod, container)]
    if cause := _node_lost(status):
        found.append(_signal(pod, own, "node_lost", cause, sure=False))
    until = moment(pod["metadata"].get("deletionTimestamp"))
    if until is not None and now > until + timedelta(seconds=KILL_S):
        cause = "it was told to end and did not hand back in time, and its Pod is still there"
        found.append(_signal(pod, own, "drain_overrun", cause, sure=False))
    return [signal for signal in found if signal is not None]


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def owner_of(pod: Pod) -> Owner:
    meta = pod["metadata"]
    for found in meta.get("ownerReferences") or ():
        if found.get("controller"):
            return Owner(found["apiVersion"], found["kind"], found["name"], found["uid"])
    return Owner("v1", "Pod", meta["name"], meta["uid"])


def _ended(pod: Pod, own: Pod, ended: Pod, cause: str) -> Signal:
    """Dead is who started before that end: told late, another container may be at work by now."""
    finished = moment(ended.get("finishedAt"))
    return _signal(pod, own, _word(ended), cause, sure=finished is not None, before=finished)


def _restarted(pod: Pod, own: Pod) -> Signal | None:
    """A container of before has ended, and another one runs or is waited for in its place."""
    ended = (own.get("lastState") or {}).get("terminated")
    state = own.get("state") or {}
    if not (ended or own.get("restartCount")):
        return None
    cause = f"its container was restarted, {_exit(ended)}"
    if "running" not in state:
        return _ended(pod, own, ended, cause) if ended and "waiting" in state else None
    started = moment((state["running"] or {}).get("startedAt"))
    return _signal(pod, own, _word(ended), cause, before=started) if started else None


def _pod_ended(pod: Pod, status: Pod, own: Pod, disrupted: tuple[str, str] | None) -> Signal:
    ended = (own.get("state") or {}).get("terminated")
    said = status.get("reason") or ""
    message = clean_text(str(status.get("message") or ""), CUT)
    if _is_oom(ended):
        return _signal(pod, own, "oom_killed", f"its Pod ended, {_exit(ended)}")
    if disrupted and said not in ENDINGS:
        return _signal(pod, own, disrupted[0], _join("its Pod ended", message or disrupted[1]))
    why = ", ".join(part for part in (said, message, _exit(ended) if ended else "") if part)
    return _signal(pod, own, ENDINGS.get(said, "pod_ended"), _join("its Pod ended", why))


def _node_lost(status: Pod) -> str:
    """Seen on the Pod, so that no rights to Nodes are needed. A node that does not answer: the node
    controller says that the Pod is not ready, while its containers still are, as far as anybody
    knows. Later the Pod is to be deleted because of the node's taint."""
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    reason, why = _disruption(status) or ("", "")
    if reason == "node_lost":
        return why
    if status.get("reason") == "NodeLost":
        return "its node was lost"
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    if ready.get("status") in ("False", "Unknown") and containers.get("status") == "True":
        return "its node does not answer"
    return ""


def _disruption(status: Pod) -> tuple[str, str] | None:
    for one in status.get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return DISRUPTIONS.get(one.get("reason"), ("disrupted", str(one.get("reason"))[:CUT]))
    return None


def _container(status: Pod, name: str) -> Pod:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == name:
            found: Pod = one
            return found
    return {}


def _is_oom(ended: Pod | None) -> bool:
    return bool(ended) and (ended or {}).get("reason") == "OOMKilled"


def _word(ended: Pod | None) -> str:
    return "oom_killed" if _is_oom(ended) else "container_died"


def _exit(ended: Pod | None) -> str:
    if not ended:
        return "why is not known"
    reason = clean_text(str(ended.get("reason") or ""), CUT)
    return " with exit code ".join(str(part) for part in (reason, ended.get("exitCode")) if part)


def _join(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _signal(
    pod: Pod,
    own: Pod,
    reason: str,
    cause: str,
    *,
    sure: bool = True,
    before: datetime | None = None,
) -> Signal:
    meta = pod["metadata"]
    return Signal(
        meta["uid"],
        meta["name"],
        meta.get("namespace") or "",
        reason,
        clean_text(cause),
        owner_of(pod),
        sure,
        before,
        int(own.get("restartCount") or 0),
    )

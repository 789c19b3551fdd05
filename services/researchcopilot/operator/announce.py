"""One Kubernetes Event for what belongs together: runs of an owner's Pods, lost for one reason.

For people who ask `kubectl describe` or `kubectl get events`, and for nothing else: it is tried
once, after the runs are queued again, and what cannot be posted is logged and counted. Its name
comes of what it tells, so that two operators at once post one.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.operator.kube import Kube, KubeRefused
from researchcopilot.operator.metrics import FAILED
from researchcopilot.operator.signals import Owner, Signal
from researchcopilot.runtime.loop import ROUND_S, Stop

log = logging.getLogger(__name__)
ROUND = 1.0  # what comes within so many seconds is told together
MOST = 100  # Events of one round
NAMED = 5  # Pods that are named; of the others the number is told
COMPONENT = "researchcopilot-operator"


@dataclass
class News:
    """What happened to one owner's Pods, for one reason."""

    namespace: str
    owner: Owner
    reason: str
    cause: str
    pods: dict[str, str] = field(default_factory=dict)  # uid → name
    runs: Counter[str] = field(default_factory=Counter)  # new status → number
    deaths: set[str] = field(default_factory=set)  # a Pod's name tells not which of its containers


class Announcer:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._news: dict[tuple[str, str], News] = {}

    def tell(self, signal: Signal, status: str) -> None:
        """A run of that Pod was taken back, and is now in this status. Does not wait."""
        key = signal.owner.uid, signal.reason
        if key not in self._news and len(self._news) >= MOST:
            FAILED.labels("events").inc()
            return
        news = self._news.setdefault(
            key, News(signal.namespace, signal.owner, signal.reason, signal.cause)
        )
        news.pods[signal.pod_uid] = signal.pod
        news.runs[status] += 1
        news.deaths.add(f"{signal.pod_uid} {signal.restarts}")

    async def run(self, stop: Stop) -> None:
        while not await stop.wait(ROUND):
            await self.post()
        try:
            async with asyncio.timeout(ROUND_S):
                await self.post()
        except TimeoutError:
            log.warning("the last Events could not be posted in time")

    async def post(self) -> None:
        news, self._news = self._news, {}
        for one in news.values():
            try:
                await self._kube.create(f"/api/v1/namespaces/{one.namespace}/events", event(one))
            except KubeRefused as error:
                if error.status != 409:  # another operator has told it already
                    _failed(error)
            except ResearchCopilotError as error:
                _failed(error)


def _failed(error: ResearchCopilotError) -> None:
    FAILED.labels("events").inc()
    log.warning("an Event could not be posted; the runs are queued all the same: %s", error)


def event(news: News) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = sentence(news)
    told = "\n".join(
        (news.owner.uid, news.reason, *sorted(news.deaths), str(sorted(news.runs.items())))
    )
    mark = hashlib.sha256(told.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{news.owner.name[:200]}.{mark}", "namespace": news.namespace},
        "involvedObject": {
            "apiVersion": news.owner.api_version,
            "kind": news.owner.kind,
            "name": news.owner.name,
            "namespace": news.namespace,
            "uid": news.owner.uid,
        },
        "reason": "RunsTakenBack",
        "message": message[:1000],
        "type": "Warning",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }


def sentence(news: News) -> str:
    """24 runs of 3 workers were taken back (oom_killed): 23 queued, 1 failed. …"""
    runs, pods = sum(news.runs.values()), sorted(news.pods.values())
    became = ", ".join(f"{n} {status}" for status, n in sorted(news.runs.items()))
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return (
        f"{_many(runs, 'run')} of {_many(len(pods), 'worker')} taken back ({news.reason}): "
        f"{became}. Of the first worker: {news.cause}. Pods: {', '.join(pods[:NAMED])}{more}."
    )


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"

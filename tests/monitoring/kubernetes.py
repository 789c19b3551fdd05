"""An API server in a thread, with a worker's Pod that dies again and again, and objects of ours: so
that an operator that Prometheus looks at has something to tell.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.operator.cluster import NAMESPACE, PODS
from tests.operator.customs import RUNS, SCHEDULES, Customs, customs
from tests.operator.stage import SELECTOR, a_pod

from researchcopilot.dev.stack import Stack

T = TypeVar("T")


@dataclass
class Kubernetes:
    """`deaths`: so many Pods have died here."""

    stack: Stack
    loop: asyncio.AbstractEventLoop
    api: Customs
    kubeconfig: str
    deaths: int = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def operator(self, folder: Path) -> None:
        """A part of the stack, ready."""
        (folder / "kubeconfig").write_text(self.kubeconfig)
        part = self.stack.add(
            "operator", "operator", KUBECONFIG=str(folder / "kubeconfig"),
            RC_OPERATOR_SELECTOR=SELECTOR, RC_OPERATOR_DELETION_COST="true",
            RC_OPERATOR_DELETION_COST_SECONDS="1",
        )  # fmt: skip
        part.start()

    def worker(self) -> None:
        """A worker in a Pod of its own."""
        pod = a_pod(f"worker-{self.deaths}")
        self.do(self.api.apply(PODS, pod))
        about = pod["metadata"]
        self.stack.add(
            "worker of a Pod", "worker", RC_POD_NAME=about["name"], RC_POD_UID=about["uid"],
            RC_POD_NAMESPACE=NAMESPACE,
        ).start()  # fmt: skip

    def death(self) -> None:
        """Its Pod is gone, with what it had in its hands, and a new one comes."""
        self.stack.parts["worker of a Pod"].kill()
        self.do(self.api.remove(PODS, f"worker-{self.deaths}"))
        self.deaths += 1
        self.worker()

    def ask(self) -> None:
        """A run and a schedule as objects."""
        name, asked = f"run-{self.deaths}", {"input": "x", "agent": "echo"}
        self.do(self.api.kubectl_apply(RUNS, name, asked))
        self.do(self.api.kubectl_apply(SCHEDULES, name, {**asked, "intervalSeconds": 3600}))


@contextmanager
def kubernetes(stack: Stack) -> Iterator[Kubernetes]:
    """Until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kubernetes", daemon=True)
    thread.start()
    opened = customs()
    found = Kubernetes(stack, loop, *_open(loop, opened.__aenter__()))
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def _open(loop: asyncio.AbstractEventLoop, opening: Any) -> tuple[Customs, str]:
    served, api = asyncio.run_coroutine_threadsafe(opening, loop).result(20)
    return api, served.kubeconfig()

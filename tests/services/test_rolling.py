"""A roll-out of every part under load, as Kubernetes does it: the new one is ready before the old
one gets SIGTERM. Nothing that was accepted is lost, nothing is refused, everybody exits with 0.
"""

import itertools
import json
import signal
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field

import pytest
from tests.conftest import Parts
from tests.support import eventually

from researchcopilot.dev.parts import Part
from researchcopilot.storage.db import Database

COUNT = {"api": 2, "worker": 2, "scheduler": 1, "janitor": 1}
GENTLY = ((signal.SIGTERM, 30.0),)


@dataclass
class Load:
    """Submits one run after the other, as a client behind a load balancer: to whichever api is
    ready, and with the same key to another one if a connection breaks."""

    key: str
    apis: list[Part]
    accepted: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            begun = time.monotonic()
            self._submit(number, str(uuid.uuid4()))
            self.seconds.append(time.monotonic() - begun)
            self.stop.wait(0.01)

    def _submit(self, number: int, idempotency: str) -> None:
        for turn in range(20):
            apis = list(self.apis)
            api = apis[(number + turn) % len(apis)]
            request = urllib.request.Request(
                f"http://127.0.0.1:{api.ports['api']}/v1/runs",
                json.dumps({"agent": "echo", "input": number}).encode(),
                {
                    "Authorization": f"Bearer {self.key}",
                    "Content-Type": "application/json",
                    "Idempotency-Key": idempotency,
                },
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    self.accepted.append(json.load(answer)["run_id"])
                    return
            except urllib.error.HTTPError as error:
                self.refused.append(f"{error.code} {error.read().decode()}")
                return
            except OSError:
                continue
        self.refused.append("no api answered")


@pytest.mark.anyio
async def test_a_roll_out_of_every_part_loses_and_refuses_nothing(
    parts: Parts, db: Database
) -> None:
    running = {name: [parts(name) for _ in range(n)] for name, n in COUNT.items()}
    load = Load(parts.new_key(), running["api"])
    client = threading.Thread(target=load.run)
    client.start()
    codes = {}
    try:
        await eventually(lambda: len(load.accepted) > 20)
        for name, some in running.items():
            for old in list(some):
                some.append(parts(name))
                some.remove(old)
                codes[old.name] = old.stop(GENTLY)
    finally:
        load.stop.set()
        client.join()
    assert set(codes.values()) == {0}, codes
    assert load.refused == []

    async def all_ended() -> bool:
        [(count,)] = await db.rows(b"SELECT count(*) FROM runs WHERE status = 'succeeded'")
        return bool(count == len(load.accepted))

    await eventually(all_ended, 30)
    [(total,)] = await db.rows(b"SELECT count(*) FROM runs")
    assert total == len(load.accepted) == len(set(load.accepted))
    ms = sorted(second * 1000 for second in load.seconds)
    print(
        f"{len(ms)} accepted, p50 {ms[len(ms) // 2]:.1f} ms, p99 {ms[len(ms) * 99 // 100]:.1f} ms"
    )

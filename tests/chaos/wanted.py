"""What a chaos test asks for: runs of random length, some that fail, on hot and on new sessions.

All of it comes from one random generator, so a seed gives the same requests again. Each run
carries in its metadata how it has to end; that a worker was killed under it must not change that.
"""

import random
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request. `key` None: it is sent without an Idempotency-Key."""

    path: str
    body: dict[str, Any]
    key: str | None
    runs: int = 1


class Wishes:
    """Endless requests. `longest`: seconds that a run takes at most."""

    def __init__(self, seed: int, longest: float, hot: int = 12) -> None:
        self._random = random.Random(seed)
        self._longest = longest
        self._hot = [self._uuid() for _ in range(hot)]
        self._count = 0

    def next(self) -> Wanted:
        self._count += 1
        key = f"key-{self._count}" if self._random.random() < 0.6 else None
        kind = self._random.random()
        if kind < 0.04:
            runs = [self._run() for _ in range(self._random.randint(2, 8))]
            return Wanted("/v1/runs:batch", {"runs": runs}, key, len(runs))
        if kind < 0.26:
            session = self._random.choice(self._hot)
            path = f"/v1/sessions/{session}/runs"
            how = "parallel" if self._random.random() < 0.2 else "queue"
            return Wanted(path, {**self._run(), "on_conflict": how}, key)
        return Wanted(self._random.choice(("/v1/runs", "/runs")), self._run(), key)

    def _run(self) -> dict[str, Any]:
        sleep = round(self._random.uniform(0, self._longest) ** 2 / self._longest, 3)
        kind = self._random.random()
        if kind < 0.6:
            body = _body("echo", "succeeded", sleep=sleep, say="hello")
            if kind < 0.06:
                body["delay_s"] = round(self._random.uniform(0.1, 3.0), 3)
            return body
        if kind < 0.75:
            parts = self._random.randint(1, 4)
            return _body("chaos", "succeeded", sleep=sleep, parts=parts)
        if kind < 0.80:
            return _body("chaos_sync", "succeeded", sleep=sleep)
        agent = self._random.choice(("chaos", "chaos", "chaos_sync"))
        how = self._random.choice(("error", "later"))
        if kind < 0.92:
            return _body(agent, "succeeded", sleep=sleep, fail=self._random.randint(1, 2), how=how)
        if kind < 0.97:
            return {**_body(agent, "failed", sleep=sleep, fail=99, how=how), "max_attempts": 2}
        return _body(agent, "failed", sleep=sleep, fail=99, how="permanent")

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


def _body(agent: str, expect: str, **given: Any) -> dict[str, Any]:
    return {"agent": agent, "input": given, "metadata": {"expect": expect}}

"""Submitting over HTTP while the api is killed: what a careful client does, and a careless one.

With a key the same request is sent until it is answered, to whichever api answers; without one, a
lost answer is not known to be a lost request: it is counted and a new request is made. An answer
other than 202 or 503 is a fault of the product.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

import httpx
from tests.chaos.tally import Tally
from tests.chaos.wanted import Wanted

TIMEOUT_S = 4.0


class Client:
    """One of several that submit at once. `urls` gives the api processes as they are now."""

    def __init__(
        self, urls: Callable[[], Sequence[str]], key: str, tally: Tally, seed: int
    ) -> None:
        self._urls = urls
        self._tally = tally
        self._random = random.Random(seed)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"}, timeout=httpx.Timeout(TIMEOUT_S, pool=None)
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, wanted: Wanted) -> None:
        """Until it is accepted; sometimes once more with the same key, as if it had got lost."""
        accepted = await self._accepted(wanted)
        while not accepted:
            await asyncio.sleep(self._random.uniform(0.02, 0.3))
            accepted = await self._accepted(wanted)
        if wanted.key and self._random.random() < 0.1:
            self._tally.counts["sent again on purpose"] += 1
            await self._accepted(wanted)

    async def _accepted(self, wanted: Wanted) -> bool:
        urls = self._urls()
        if not urls:
            return False
        headers = {"Idempotency-Key": wanted.key} if wanted.key else {}
        try:
            answer = await self._http.post(
                self._random.choice(urls) + wanted.path, json=wanted.body, headers=headers
            )
        except httpx.ConnectError:
            self._tally.counts["api did not listen"] += 1
            return False
        except httpx.TransportError:
            how = "sent again by key" if wanted.key else "left as unknown"
            self._tally.counts[f"answers lost, {how}"] += 1
            return False
        return await self._judge(wanted, answer)

    async def _judge(self, wanted: Wanted, answer: httpx.Response) -> bool:
        if answer.status_code == 503:
            self._tally.counts["answered with 503"] += 1
            return False
        if answer.status_code != 202:
            self._tally.complain(f"{wanted.path} was answered {answer.status_code}: {answer.text}")
            return True
        body = answer.json()
        run_ids = tuple(run["run_id"] for run in body.get("data", [body]))
        if len(run_ids) != wanted.runs:
            self._tally.complain(f"{wanted.runs} runs were asked for, {len(run_ids)} answered")
        replayed = answer.headers.get("idempotent-replayed") == "true"
        await self._tally.accept(wanted.key, run_ids, replayed=replayed)
        return True

"""A worker of a protocol test: it resends its claims, forgets, comes late, finishes twice."""

import asyncio
from collections.abc import Sequence

from tests.chaos.scene import POISON, Scene

from researchcopilot.core.ids import new_id
from researchcopilot.core.models import Claim, Finished, Outcome, Verdict
from researchcopilot.core.states import TERMINAL
from researchcopilot.runtime.batch import Group
from researchcopilot.storage import moves


class Worker:
    """One worker identity: it claims, holds, renews, finishes, and sometimes forgets."""

    def __init__(self, scene: Scene, worker_id: str) -> None:
        self.scene = scene
        self.worker_id = worker_id
        self.random = scene.random
        self.report = scene.report
        self._held: set[tuple[str, int]] = set()
        self._finish: Group[Outcome, Finished] = Group(
            self._send_finish,
            again=scene.again,
            limits=scene.limits,
            lanes=scene.lanes,
        )

    async def take(self, run_ids: Sequence[str]) -> None:
        """Claim these, and live through what was claimed."""
        claim_id = new_id()
        verdicts = await self._claim(run_ids, claim_id)
        claims = _claims(verdicts)
        if self.scene.maybe(0.1):
            again = await self._claim(run_ids, claim_id)
            self._compare(verdicts, again)
            claims |= _claims(again)
        async with asyncio.TaskGroup() as tasks:
            for claim in claims.values():
                tasks.create_task(self._live(claim))

    async def _claim(self, run_ids: Sequence[str], claim_id: str) -> dict[str, Verdict]:
        db, lease_s = self.scene.db, self.scene.program.lease_s
        verdicts = await self.scene.patiently(
            lambda: moves.claim(
                db, run_ids, worker_id=self.worker_id, claim_id=claim_id, lease_s=lease_s
            )
        )
        if sorted(verdict.run_id for verdict in verdicts) != sorted(run_ids):
            self.report.complain(f"{len(verdicts)} verdicts for {len(run_ids)} ids of a claim")
        for verdict in verdicts:
            self.report.counts[f"claim: {verdict.verdict}"] += 1
        return {verdict.run_id: verdict for verdict in verdicts}

    def _compare(self, first: dict[str, Verdict], again: dict[str, Verdict]) -> None:
        """A resent claim gives back what the first one got, or what was taken back meanwhile."""
        for run_id, verdict in again.items():
            before = first[run_id].claim if run_id in first else None
            now = verdict.claim
            if verdict.verdict == "mine" and now != before:
                self.report.complain(f"a resent claim is another one: {before} and then {now}")
            if now is not None and before is not None and now.claim_no < before.claim_no:
                self.report.complain(f"a resent claim went back: {before} and then {now}")

    async def _live(self, claim: Claim) -> None:
        self._held.add((claim.run_id, claim.claim_no))
        try:
            await self._execute(claim)
        finally:
            self._held.discard((claim.run_id, claim.claim_no))

    async def _execute(self, claim: Claim) -> None:
        lease = self.scene.program.lease_s
        await asyncio.sleep(self.random.choice((0, 0, 0.2, 0.5, 1.5)) * lease)
        if self.scene.maybe(0.2):
            await self._renew()
            await asyncio.sleep(self.random.uniform(0, lease))
        if self.scene.maybe(0.05):
            return  # it died
        outcome = self._outcome(claim)
        finished = await self._end(outcome)
        if self.scene.maybe(0.1):
            self._judge_twice(outcome, finished, await self._end(outcome))

    async def _renew(self) -> None:
        """All that is held, from another thread than the loop's, as a worker does."""
        pairs = list(self._held)
        async with self.scene.renewing:
            verdicts = await asyncio.to_thread(
                self.scene.renewer.renew, self.worker_id, pairs, self.scene.program.lease_s
            )
        if sorted(verdicts) != sorted(pairs):
            self.report.complain(f"a renewal of {pairs} was answered by {verdicts}")
        for verdict in verdicts.values():
            self.report.counts[f"renewal: {verdict}"] += 1

    def _outcome(self, claim: Claim) -> Outcome:
        kind = self.random.choices(
            ("succeeded", "retry", "release", "failed", "cancelled"), (70, 12, 10, 5, 3)
        )[0]
        delay_s = self.random.choice((0.0, 0.0, 0.03, 0.2)) if kind in ("retry", "release") else 0
        error = {"type": "E", "message": "no"} if kind in ("retry", "failed") else None
        result = (
            f'{{"answer": "it is", "claim_no": {claim.claim_no}}}' if kind == "succeeded" else None
        )
        if result and self.scene.program.poison and self.scene.maybe(0.04):
            result = self.random.choice(POISON)
        return Outcome(claim.run_id, claim.claim_no, self.worker_id, kind, result, error, delay_s)

    async def _end(self, outcome: Outcome) -> Finished:
        """Finish, as the worker does it: what Postgres refuses is failed by a bare outcome."""
        try:
            finished = await self._finish(outcome)
        except Exception as error:
            if outcome.result not in POISON:
                self.report.complain(f"a good member of a group failed: {error!r}")
            self.report.counts["poisoned"] += 1
            bare = {"type": "finish_refused", "message": "…"}
            finished = await self._finish(
                Outcome(outcome.run_id, outcome.claim_no, self.worker_id, "failed", error=bare)
            )
        else:
            if outcome.result in POISON and finished.verdict not in ("already", "stale"):
                self.report.complain(f"Postgres took what is poison: {finished.verdict}")
        self.report.counts[f"finish: {finished.verdict}"] += 1
        if finished.run_id != outcome.run_id:
            self.report.complain(f"the verdict of {finished.run_id} was given to another run")
        return finished

    async def _send_finish(self, outcomes: Sequence[Outcome]) -> list[Finished]:
        finished, unparked = await moves.finish(self.scene.db, self.worker_id, outcomes)
        self.report.counts["freed"] += len(unparked)
        self.report.counts["finish groups"] += 1
        return finished

    def _judge_twice(self, outcome: Outcome, first: Finished, second: Finished) -> None:
        moved = first.verdict in (*TERMINAL, "queued", "already")
        if second.verdict != ("already" if moved else "stale"):
            self.report.complain(
                f"finished twice: {first.verdict} and then {second.verdict} for claim "
                f"{outcome.claim_no} of {outcome.run_id}"
            )


def _claims(verdicts: dict[str, Verdict]) -> dict[tuple[str, int], Claim]:
    claims = [verdict.claim for verdict in verdicts.values() if verdict.claim is not None]
    return {(claim.run_id, claim.claim_no): claim for claim in claims}

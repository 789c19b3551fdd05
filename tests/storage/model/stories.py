"""Stories of a model test: orders of steps that chance finds rarely, and that hurt.

A story looks at how things stand, adds what is missing, and ends with the step that it is about,
which may be cut. Each of its steps is compared like any other. No story may wait for what other
rules do, since hypothesis leaves most rules out of an example; nor may it demand that it got to
its end: what an example holds may be in its way, and then it was only some more steps.
"""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.storage.model.actors import QUEUES, Worker
from tests.storage.model.client import Wish
from tests.storage.model.machine import CUTS, KINDS, PICK, WISHES, Machine
from tests.storage.model.wire import Cut

ROUNDS = 6
PLAIN = Wish(
    how="parallel", session=0, runs=1, delayed=False, hurried=False, max_attempts=3, key=None,
    unique=False, foreign=False,
)  # fmt: skip
# Between the commit of a submit and its push, or near to that.
LOSING = st.builds(Cut, st.integers(1, 5), st.just(True))
# Where a take has claimed: it asks Redis once, twice or three times before.
AT_CLAIM = (3, 5, 7)


class Stories(Machine):
    @rule(pick=PICK, kind=st.sampled_from(["same", "renew", "renew", *KINDS]), cut=CUTS)
    def late_end(self, pick: int, kind: str, cut: Cut | None) -> None:
        """A worker was asleep for longer than its lease. It takes its own run once more, and then
        what it began before comes to its end, or is renewed."""
        if not self._superseded():
            self._lose_leases(pick)
        late = self._superseded()
        if not late:
            return
        worker, pair = late[pick % len(late)]
        if kind == "renew" and pair in worker.held:
            self._step(worker, worker.renew, cut)
            return
        ended = [o for o in worker.ended if (o.run_id, o.claim_no) == pair and kind == "same"]
        again = worker.outcome(pair, kind if kind in KINDS else "succeeded")
        finish = worker.finish if pair in worker.held else worker.finish_again
        self._step(worker, lambda: finish([*ended, again][:1]), cut)

    def _superseded(self) -> list[tuple[Worker, tuple[str, int]]]:
        """Claims after which their run was claimed again: at best by the same worker."""
        runs = self.judge.world.runs
        found = [
            (worker, (run_id, claim_no))
            for worker in self.workers
            for run_id, claim_no in dict.fromkeys(
                [*worker.held, *((o.run_id, o.claim_no) for o in worker.ended)]
            )
            if runs[run_id]["claim_no"] > claim_no and runs[run_id]["status"] == "running"
        ]
        own = [(w, pair) for w, pair in found if runs[pair[0]]["worker_id"] == w.worker_id]
        return own or found

    def _workers_at_work(self) -> list[Worker]:
        """Empty only if all that was taken is parked, not due or gone."""
        if not self._busy():
            self._submit([PLAIN], 0, None)
            self._take_all()
        return self._busy()

    def _lose_leases(self, pick: int) -> None:
        busy = self._workers_at_work()
        if not busy:
            return
        worker = busy[pick % len(busy)]
        self._reclaim(None)
        for queue in QUEUES:
            self._make_room(worker, queue)
            self._take(worker, queue, None)

    def _reclaim(self, cut: Cut | None) -> None:
        self.time_passes(40)
        self._step(self.janitor, self.janitor.duties()["leases"], cut)

    def _make_room(self, worker: Worker, queue: str) -> None:
        """A free slot in this queue."""
        if worker.held and not worker.free(queue):
            pair = next(
                pair for pair, (hand, _) in worker.held.items() if hand.claim.queue == queue
            )
            self._step(worker, lambda: worker.finish([worker.outcome(pair, "succeeded")]))

    @rule(wishes=WISHES, losing=LOSING, cut=CUTS)
    def lost_push(self, wishes: list[Wish], losing: Cut, cut: Cut | None) -> None:
        """The api dies between commit and push. A probe goes through the line after it, and what
        is older and stands nowhere comes back."""
        if not self.without:
            self._submit(wishes, 0, losing)
        self.time_passes(20)
        self._step(self.janitor, self.janitor.duties()["probes"])
        for _ in range(ROUNDS):
            if self._probes_wait():
                self._take_all()
        self.time_passes(20)
        self._step(self.janitor, self.janitor.duties()["probes"], cut)

    def _probes_wait(self) -> bool:
        return any(e.startswith("probe.") for line in self.hints.waiting.values() for e in line)

    def _take_all(self) -> None:
        if not self.workers:
            self._start_worker(None)
        for worker in list(self.workers):
            for queue in QUEUES:
                self._make_room(worker, queue)
                self._take(worker, queue, None)

    @rule(pick=PICK, fresh=st.booleans(), first=CUTS, second=CUTS)
    def replayed_twice(self, pick: int, fresh: bool, first: Cut | None, second: Cut | None) -> None:
        """A dead letter is replayed; and then once more, whatever became of the first answer."""
        if not self._dead() and self._workers_at_work():
            self._finish(pick, ["failed"], False, False, None)
        dead = self._dead()[:1]
        if dead and pick % 4 == 0:  # discarded before, which is no reason to refuse it
            self._step(self.api, lambda: self.api.discard(dead), first)
        if dead:
            self._replay(dead, fresh, first)
            self._replay(dead, fresh, second)

    def _dead(self) -> list[str]:
        runs = self.judge.world.runs.items()
        failed = [(i, r) for i, r in runs if r["status"] == "failed" and r["workspace_id"] == 1]
        return [run_id for run_id, run in failed if run["resolved_by"] is None]

    @rule(pick=PICK, kind=st.sampled_from(["renew", "lost", "lost", *KINDS]), cut=CUTS)
    def asked_to_stop(self, pick: int, kind: str, cut: Cut | None) -> None:
        """A running run is cancelled; then it ends all the same, or its worker dies."""
        busy = self._workers_at_work()
        if not busy:
            return
        worker = busy[pick % len(busy)]
        pair = list(worker.held)[pick % len(worker.held)]
        self._step(self.api, lambda: self.api.cancel(1, [pair[0]]))
        if kind == "lost":
            self._reclaim(cut)
        elif kind == "renew":
            self._step(worker, worker.renew, cut)
        else:
            self._step(worker, lambda: worker.finish([worker.outcome(pair, kind)]), cut)

    @rule(wishes=WISHES, pick=PICK, points=st.permutations(AT_CLAIM))
    def lost_answer(self, wishes: list[Wish], pick: int, points: list[int]) -> None:
        """Postgres has claimed, and the worker is not told; it asks once more."""
        for point in points:
            if not self.workers:
                self._start_worker(None)
            for worker in self.workers:
                self._make_room(worker, "runs")
            if not self._takers():
                self._submit([PLAIN, *wishes], 1, None)
            takers = self._takers()
            if takers:
                self._take(*takers[pick % len(takers)], Cut(point, crash=False))
            if self.judge.log.count("claim") > 1:
                return

    @rule(pick=PICK, kind=st.sampled_from(["release", "retry"]), cut=CUTS)
    def turn_given_up(self, pick: int, kind: str, cut: Cut | None) -> None:
        """A run that waits for its next attempt holds its session's turn, and is cancelled: the
        next in line is freed."""
        for _ in range(2):
            self._submit([replace(PLAIN, how="queue", session=pick)], 0, None)
            self._take_all()
        runs = self.judge.world.runs
        parked = {run["session_id"] for run in runs.values() if run["parked"]}
        for worker in self.workers:
            for pair in [p for p in worker.held if runs[p[0]]["session_id"] in parked][:1]:
                ends = [worker.outcome(pair, kind)]
                self._step(worker, partial(worker.finish, ends))
                self._step(self.api, partial(self.api.cancel, 1, [pair[0]]), cut)
                return

    @rule(pick=PICK, cut=CUTS)
    def too_early(self, pick: int, cut: Cut | None) -> None:
        """The entry of a run that is not due stands in the list, as after two clocks or a push that
        was sent again. It goes back to those that wait."""
        self._submit([replace(PLAIN, delayed=True)], 0, None)
        self._push_again([self.client.asked[-1].runs[0].run_id])
        for worker in self.workers:
            self._make_room(worker, "runs")
        takers = [(w, queue) for w, queue in self._takers() if queue == "runs"]
        if takers:
            self._take(*takers[pick % len(takers)], cut)

    and_late_end, and_lost_push, and_replayed_twice = late_end, lost_push, replayed_twice
    and_asked_to_stop, and_lost_answer = asked_to_stop, lost_answer
    and_turn_given_up, and_too_early = turn_given_up, too_early

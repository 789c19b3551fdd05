"""The machine of a model test: hypothesis draws what happens next, and where it is cut.

Each rule is one step of one process (or of the world: time passes, Redis is wiped). After each
step: every statement did what `expected` says, the rules of `rules.sql` hold, nobody's hint has
vanished unless a wire was cut, and what a client was told is still true. At the end of each
example the wires stay whole, the healing parts go on, and everything must end.

Which rule comes next must never hang on how things stand (no precondition, no rejected example):
how long a real server takes would decide what is drawn, and hypothesis cannot tell it again. A
rule that finds nothing to do does nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.storage.model.actors import QUEUES, Api, Janitor, Process, Worker
from tests.storage.model.client import Client, Wish, wishes
from tests.storage.model.hints import forgotten, unhinted
from tests.storage.model.stage import Stage
from tests.storage.model.wire import Cut

from researchcopilot.core.models import Outcome

KINDS = ("succeeded", "succeeded", "failed", "failed", "cancelled", "retry", "retry", "release")
DUTIES = ("leases", "entries", "deadlines", "probes", "redis", "delayed", "parked", "due")
OFTEN = (*DUTIES, "leases", "leases", "entries", "probes", "due")
WISHES = st.lists(wishes(), min_size=1, max_size=4)
ENDS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)
TROUBLE = ("start", "start", "kill", "drain", "drain", "twice", "wiped")
ASKED = ("again", "once more", "cancel", "cancel", "cancel", "replay", "discard", "discard")
CUTS = st.one_of(
    st.none(),
    st.builds(Cut, st.integers(0, 5), st.booleans()),
    st.builds(Cut, st.integers(0, 14), st.booleans()),
)
PICK = st.integers(0, 1000)
# No two sums of these and of the waits of wishes and outcomes (50, 45, 130, lease 30, a day) are
# equal: nothing becomes due in the moment in which it is looked at.
TIMES = st.sampled_from([20, 20, 20, 40, 40, 40, 60, 60, 100, 200, 200, 90_000])
ROUNDS = 15


class Machine(RuleBasedStateMachine):
    def __init__(self, stage: Stage, group: int) -> None:
        super().__init__()
        self.stage = stage
        self.group = group
        self.broken = False
        self.judge = stage.clear()
        self.client = Client(4 if group == 1 else 16)
        self.workers: list[Worker] = []
        self.worker_ids: list[str] = []
        self.api = Api(stage.place, self.judge)
        self.janitor = Janitor(stage.place, self.judge)
        self.hints = stage.hints([])
        self.without: set[str] = set()
        self.healing = False
        self.over = False  # nobody can say what is right any more; what comes does nothing

    # One step

    def _step(
        self, process: Process, work: Callable[[], Awaitable[None]], cut: Cut | None = None
    ) -> None:
        if self.over:
            return
        self.broken = True  # until it is known to be good
        self.judge.log.clear()
        known = set(process.handback.known) if isinstance(process, Worker) else set()
        process.wire.arm(cut)
        self.stage.runner.run(process.live(work))
        how = process.wire.happened
        cut_off = bool(how)
        process.wire.arm(None)
        if cut_off:
            self.stage.seen[f"cut: {how}"] += 1
        self._bury(process)
        before = self.hints
        self._look(cut=cut_off)
        if isinstance(process, Worker) and not cut_off and not self.over:
            self._complain(forgotten(process, known, before, self.hints))
        self.broken = False

    def _bury(self, process: Process) -> None:
        if not process.wire.dead:
            return
        if isinstance(process, Worker):
            self.workers.remove(process)
        elif process is self.api:
            self.api = Api(self.stage.place, self.judge)
        else:
            self.janitor = Janitor(self.stage.place, self.judge)

    def _look(self, *, cut: bool) -> None:
        """Is everything as it must be? `cut`: hints may have been lost."""
        if not self.healing:
            self.judge.nothing_else()
        self.over = self.over or self.judge.unjudgeable
        if self.over:
            return
        self.hints = self.stage.hints(self.worker_ids)
        without = self.without
        self.without = unhinted(self.judge.world, self.hints, self.workers)
        new = set() if cut else self.without - without
        complaints = [*self.judge.complaints]
        complaints += [f"run {run_id} is queued and stands in no list" for run_id in new]
        complaints += self.client.complaints(self.judge.world)
        complaints += [] if self.healing else self.stage.findings()
        self._complain(complaints)

    def _complain(self, complaints: list[str]) -> None:
        if complaints:
            raise AssertionError(
                "\n".join(complaints[:10])
                + f"\nstatements of this step: {', '.join(self.judge.log)}\n"
                + self.stage.history(self.judge.world)
            )

    # Submitting

    @initialize()
    def a_worker_comes(self) -> None:
        self._start_worker(None)

    @rule(wishes=WISHES, many=PICK, cut=CUTS)
    def submit(self, wishes: list[Wish], many: int, cut: Cut | None) -> None:
        self._submit(wishes, many, cut)

    def _submit(self, wishes: list[Wish], many: int, cut: Cut | None) -> None:
        number = min(self.group, (1, 2, 6, 64)[many % 4])
        chosen = [wishes[place % len(wishes)] for place in range(number)]
        chosen[8:] = [replace(wish, how="queue") for wish in chosen[8:]]  # who rejects goes alone
        submissions = self.client.submissions(chosen, self.stage.observer.now())

        async def work() -> None:
            self.client.told(submissions, await self.api.submit(submissions))

        self._step(self.api, work, cut)

    @rule(
        what=st.sampled_from(ASKED),
        picks=st.lists(PICK, min_size=1, max_size=4),
        cut=CUTS,
    )
    def ask(self, what: str, picks: list[int], cut: Cut | None) -> None:
        if what in ("again", "once more"):
            self._submit_again(picks, what == "again", cut)
        elif what == "cancel":
            run_ids = self._some(picks, *(("running",) if picks[0] % 2 else ("queued", "running")))
            self._step(self.api, lambda: self.api.cancel(1, run_ids), cut)
        elif what == "replay":
            self._replay(self._some(picks, "failed"), picks[0] % 2 == 0, cut)
        else:
            run_ids = self._some(picks[:2], "failed")
            self._step(self.api, lambda: self.api.discard(run_ids), cut)

    def _submit_again(self, picks: list[int], same: bool, cut: Cut | None) -> None:
        """As if the answer had been lost: by the api (the same ids), or by a client (new ones)."""
        number = len(self.client.asked)
        places = list(dict.fromkeys(pick % number for pick in picks if number))
        chosen = [self.client.asked[place] for place in places[: self.group]]
        submissions = chosen if same else [self.client.once_more(one) for one in chosen]

        async def work() -> None:
            self.client.told(submissions, await self.api.submit(submissions))

        self._step(self.api, work, cut)

    def _replay(self, run_ids: list[str], fresh: bool, cut: Cut | None) -> None:
        async def work() -> None:
            self.client.replayed(await self.api.replay(run_ids, fresh))

        self._step(self.api, work, cut)

    def _some(self, picks: Sequence[int], *statuses: str) -> list[str]:
        """Mostly runs of these statuses; and others, since anybody may ask for anything."""
        runs = self.judge.world.runs
        wanted = [run_id for run_id, run in runs.items() if run["status"] in statuses]
        lists = [wanted if wanted and pick % 4 else list(runs) for pick in picks if runs]
        found = [ids[pick % len(ids)] for ids, pick in zip(lists, picks, strict=bool(runs))]
        if self.group > 1 and len(picks) > 2:
            found += wanted[picks[0] % (len(wanted) + 1) :]
        return list(dict.fromkeys(found))[: 1 if self.group == 1 else self.group // 2]

    # Working

    def _come_and_go(self, what: str, pick: int, cut: Cut | None) -> None:
        if not self.workers or (what == "start" and len(self.workers) < 3):
            self._start_worker(cut)
            return
        worker = self._worker(pick)
        if what == "drain":
            self._step(worker, worker.drain, cut)
        if worker in self.workers and (what == "kill" or not worker.held):
            self.workers.remove(worker)
            self.stage.runner.run(worker.end())

    def _start_worker(self, cut: Cut | None) -> None:
        worker = Worker(self.stage.place, self.judge, max(2, self.group))
        self.workers.append(worker)
        self.worker_ids.append(worker.worker_id)
        self._step(worker, worker.register, cut)

    def _worker(self, pick: int) -> Worker:
        return self.workers[pick % len(self.workers)]

    @rule(pick=PICK, cut=CUTS)
    def take(self, pick: int, cut: Cut | None) -> None:
        if takers := self._takers():
            self._take(*takers[pick % len(takers)], cut)

    def _take(self, worker: Worker, queue: str, cut: Cut | None) -> bool:
        """False if there is nothing to take, which a worker would wait for."""
        if not self._may_take(worker, queue):
            return False
        if not self.hints.waiting[queue]:
            worker.compare(queue)  # a minute has passed
        self._step(worker, lambda: worker.take(queue), cut)
        return True

    def _may_take(self, worker: Worker, queue: str) -> bool:
        hands = self.hints.hands.get((queue, worker.worker_id), [])
        unknown = any((queue, entry) not in worker.handback.known for entry in hands)
        return (
            not self.over
            and worker.free(queue) > 0
            and (unknown or bool(self.hints.waiting[queue]))
        )

    def _takers(self) -> list[tuple[Worker, str]]:
        return [(w, queue) for w in self.workers for queue in QUEUES if self._may_take(w, queue)]

    @rule(pick=PICK, kinds=ENDS, wait=st.booleans(), follow=st.booleans(), cut=CUTS)
    def finish(
        self, pick: int, kinds: list[str], wait: bool, follow: bool, cut: Cut | None
    ) -> None:
        self._finish(pick, kinds, wait, follow, cut)

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.held]

    def _finish(
        self, pick: int, kinds: list[str], wait: bool, follow: bool, cut: Cut | None
    ) -> None:
        busy = self._busy()
        if not busy:
            return
        worker = busy[pick % len(busy)]
        pairs = list(worker.held)
        pairs = pairs[pick % len(pairs) :][: 1 if self.group == 1 else 1 + pick % self.group]
        outcomes = [
            self._outcome(worker, pair, kinds[place % len(kinds)], wait, follow)
            for place, pair in enumerate(pairs)
        ]
        self._step(worker, lambda: worker.finish(outcomes), cut)

    def _outcome(
        self, worker: Worker, pair: tuple[str, int], kind: str, wait: bool, follow: bool
    ) -> Outcome:
        outcome = worker.outcome(pair, kind, 45.0 * wait * (kind in ("retry", "release")))
        return self.client.with_follow_up(outcome) if follow and kind == "succeeded" else outcome

    @rule(
        what=st.sampled_from(("renew", "renew", "beat", "again", "again")),
        pick=PICK,
        kind=st.sampled_from(["same", *KINDS]),
        cut=CUTS,
    )
    def hold(self, what: str, pick: int, kind: str, cut: Cut | None) -> None:
        if not self.workers:
            return
        worker = self._worker(pick)
        if what == "renew" and worker.held:
            self._step(worker, worker.renew, cut)
        elif what == "beat":
            self._step(worker, worker.beat, cut)
        elif worker.ended:
            self._finish_again(worker, kind, pick, cut)

    def _finish_again(self, worker: Worker, kind: str, pick: int, cut: Cut | None) -> None:
        """As it was, or as another end of the same claim."""
        chosen = worker.ended[-self.group :]
        if self.group == 1:
            chosen = [worker.ended[-1 - pick % min(len(worker.ended), 6)]]
        outcomes = {(o.run_id, o.claim_no): o for o in chosen}
        if kind != "same":
            outcomes = {pair: worker.outcome(pair, kind) for pair in outcomes}
        self._step(worker, lambda: worker.finish_again(list(outcomes.values())), cut)

    # What most of it is about comes more often. Two names for one thing: hypothesis leaves some
    # rules out of each example, by their names.
    submit_more = and_submit = and_submit_more = submit
    take_more = and_take = and_take_more = take
    finish_more = and_finish = and_finish_more = finish

    # Mending, and what the world does

    @rule(duty=st.sampled_from(OFTEN), cut=CUTS)
    def sweep(self, duty: str, cut: Cut | None) -> None:
        self._step(self.janitor, self.janitor.duties()[duty], cut)

    @rule(seconds=TIMES)
    def time_passes(self, seconds: int) -> None:
        if self.over:
            return
        self.broken = True
        self.judge.nothing_else()
        self.stage.passes(seconds, self.worker_ids, self.judge)
        for worker in self.workers:
            for queue in QUEUES:
                worker.compare(queue)
        self._look(cut=False)
        self.broken = False

    @rule(what=st.sampled_from(TROUBLE), picks=st.lists(PICK, min_size=1, max_size=3), cut=CUTS)
    def trouble(self, what: str, picks: list[int], cut: Cut | None) -> None:
        """Workers come and go. Redis is wiped; or ids stand there twice, as after a push that was
        sent again."""
        if what not in ("wiped", "twice"):
            self._come_and_go(what, picks[0], cut)
        if what not in ("wiped", "twice") or self.over:
            return
        self.broken = True
        if what == "wiped":
            self.stage.redis.flushall()
        if what == "twice":
            self._push_again(self._some(picks, "queued"))
        self._look(cut=what == "wiped")
        self.broken = False

    and_sweep, and_time_passes, and_ask = sweep, time_passes, ask

    def _push_again(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            run = self.judge.world.runs.get(run_id)
            if run is not None and not self.over:
                self.stage.redis.rpush(f"queue:{run['queue']}", f"{run['workspace_id']}.{run_id}")
        self._look(cut=False)

    # The end

    def teardown(self) -> None:
        try:
            if not self.broken:
                self._heal()
        finally:
            for process in (*self.workers, self.api, self.janitor):
                self.stage.runner.run(process.end())

    def _heal(self) -> None:
        """With whole wires. Each statement is compared still, all else after each round."""
        self._start_worker(None)
        for _ in range(ROUNDS):
            self.healing = True
            for duty in DUTIES:
                self._step(self.janitor, self.janitor.duties()[duty])
            for worker in list(self.workers):
                self._work_off(worker)
            self.healing = False
            self._look(cut=False)
            if self._is_quiet():
                break
            self.time_passes(40)
        if not self.over:
            self._complain(self._unfinished())

    def _work_off(self, worker: Worker) -> None:
        self._step(worker, worker.beat)
        self._step(worker, worker.renew)
        for queue in QUEUES:
            while self._take(worker, queue, None):
                self._finish_all(worker)
        self._finish_all(worker)

    def _finish_all(self, worker: Worker) -> None:
        outcomes = [worker.outcome(pair, "succeeded") for pair in worker.held]
        if outcomes:
            self._step(worker, lambda: worker.finish(outcomes))

    def _is_quiet(self) -> bool:
        runs = self.judge.world.runs.values()
        return not self.hints.left() and not any(
            run["status"] in ("queued", "running") for run in runs
        )

    def _unfinished(self) -> list[str]:
        return [*(f"{entry} is left in Redis" for entry in self.hints.left()),
                *self.stage.findings(finished=True)]  # fmt: skip

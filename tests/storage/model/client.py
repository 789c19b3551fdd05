"""The clients of a model test: what they ask for, and what they were told, which stays true."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from tests.storage.model.world import TERMINAL, World

from researchcopilot.core.errors import BadInput, Conflict, NotFound, ResearchCopilotError
from researchcopilot.core.ids import new_id
from researchcopilot.core.models import (
    IdempotencyKey,
    NewRun,
    Outcome,
    Replayed,
    Submission,
    Submitted,
)

ROUTE = "POST /v1/runs"


@dataclass(frozen=True, slots=True)
class Wish:
    """One request as hypothesis draws it; ids come later. `session`: one of a few, all hot."""

    how: str
    session: int
    runs: int
    delayed: bool
    hurried: bool
    max_attempts: int
    key: int | None
    unique: bool
    foreign: bool


def wishes() -> st.SearchStrategy[Wish]:
    rarely = st.integers(0, 99).map(lambda number: 50 < number < 56)  # ends come more often
    return st.builds(
        Wish,
        how=st.sampled_from(["queue", "queue", "queue", "parallel", "reject", "cancel_previous"]),
        session=st.integers(0, 3),
        runs=st.sampled_from([1, 1, 2, 3]),
        delayed=st.sampled_from([False, False, True]),
        hurried=st.sampled_from([False, False, False, True]),
        max_attempts=st.integers(1, 3),
        key=st.one_of(st.none(), st.integers(0, 3)),
        unique=rarely,
        foreign=rarely,
    )


@dataclass
class Client:
    """All clients together. `asked`: every submission that was ever sent."""

    number: int  # of their sessions
    asked: list[Submission] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    replays: dict[str, str] = field(default_factory=dict)
    ends: dict[str, tuple[str, Any]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions = [new_id() for _ in range(self.number)]

    def submissions(self, wishes: Sequence[Wish], now: datetime) -> list[Submission]:
        made = [self._submission(wish, now, n) for n, wish in enumerate(wishes)]
        self.asked += made
        return made

    def _submission(self, wish: Wish, now: datetime, number: int) -> Submission:
        strict = wish.how in ("reject", "cancel_previous") or wish.unique
        runs = range(1 if strict else wish.runs)
        key = None
        if wish.key is not None and not wish.unique:
            key = IdempotencyKey(
                1 + wish.foreign, ROUTE, f"key {wish.key} {number}", body_hash=repr(wish)
            )
        return Submission(tuple(self._run(wish, now, n + number) for n in runs), key)

    def _run(self, wish: Wish, now: datetime, number: int) -> NewRun:
        if wish.unique:  # as an upload asks for its index to be built
            return NewRun(
                new_id(), 1, "rebuild", "system", {}, None, serial=False, unique_key="rebuild"
            )
        return NewRun(
            run_id=new_id(), workspace_id=1 + wish.foreign, agent="echo", queue="runs",
            input="why?", session_id=self.sessions[(wish.session + number) % self.number],
            serial=wish.how != "parallel",
            on_conflict="queue" if wish.how == "parallel" else wish.how,
            max_attempts=wish.max_attempts, delay_s=50.0 if wish.delayed else None,
            deadline=now + timedelta(seconds=130) if wish.hurried else None,
        )  # fmt: skip

    def once_more(self, submission: Submission) -> Submission:
        """The same request, as a client that got no answer sends it: the ids are new."""
        runs = tuple(replace(run, run_id=new_id()) for run in submission.runs)
        return replace(submission, runs=runs)

    def told(
        self, submissions: Sequence[Submission], answers: Sequence[Submitted | ResearchCopilotError]
    ) -> None:
        for submission, answer in zip(submissions, answers, strict=True):
            if isinstance(answer, Submitted):
                self.accepted.update(answer.run_ids)
            elif not isinstance(answer, BadInput | Conflict | NotFound):
                continue  # 503: ask again
            wanted = len(submission.runs)
            if isinstance(answer, Submitted) and len(answer.run_ids) != wanted:
                self.words.append(f"{wanted} runs were asked for, and answered by {answer}")

    def replayed(self, answers: Sequence[Replayed]) -> None:
        for answer in answers:
            if answer.new_run_id is not None:
                self.accepted.add(answer.new_run_id)
                first = self.replays.setdefault(answer.run_id, answer.new_run_id)
                if first != answer.new_run_id:
                    self.words.append(f"{answer.run_id} was replayed as {first}, then as {answer}")

    def with_follow_up(self, outcome: Outcome) -> Outcome:
        run = {"run_id": new_id(), "agent": "digest", "queue": "system", "delay_s": 50.0}
        memory = {
            "memory_id": new_id(), "question": "why?", "text": "so", "tokens": ["so"], "days": 1.0,
        }  # fmt: skip
        asked = {"run": {**run, "max_attempts": 2}, "memory": memory}
        return replace(outcome, follow_up=json.dumps(asked))

    def complaints(self, world: World) -> list[str]:
        """What is no longer as somebody was told, or has seen."""
        words = self.words
        words += [f"{i} was accepted, and is gone" for i in self.accepted - world.runs.keys()]
        for run_id, run in world.runs.items():
            if run["status"] in TERMINAL:
                end = run["status"], run["result"]
                if self.ends.setdefault(run_id, end) != end:
                    words.append(f"{run_id} had ended as {self.ends[run_id]}, and now as {end}")
            elif run_id in self.ends:
                words.append(f"{run_id} had ended as {self.ends[run_id]}, and is {run['status']}")
        return words

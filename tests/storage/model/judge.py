"""Each statement of the product is compared with what it must do: before it, after it, and its
answer. Nothing is raised here, since the product would catch it: the machine looks at `complaints`
after each step."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.storage.model import expected
from tests.storage.model.expected import Answer, Moment
from tests.storage.model.submitted import submit
from tests.storage.model.world import Observer, Unjudgeable, World, differences

from researchcopilot.storage.sql import load

_MOVES, _RECOVERY, _DEAD = load("moves"), load("recovery"), load("dead_letters")
Reference = Callable[[World, Moment, dict[str, Any]], Answer]
# Statement → what it must do, and the columns of its answer that are compared.
REFERENCES: dict[bytes, tuple[Reference, tuple[int, ...]]] = {
    _MOVES["submit"]: (submit, (0, 1, 2)),
    _MOVES["claim"]: (expected.claim, (0, 1, 3)),
    _MOVES["renew"]: (expected.renew, (0, 1, 2)),
    _MOVES["finish"]: (expected.finish, (0, 1, 5)),
    _MOVES["cancel"]: (expected.cancel, (0, 1)),
    _MOVES["reclaim"]: (expected.reclaim, (0, 1)),
    _MOVES["expire"]: (expected.expire, (0, 1)),
    _MOVES["free"]: (expected.free, (0, 1)),
    _MOVES["replay"]: (expected.replay, (0, 1, 2)),
    _DEAD["discard"]: (expected.discard, (0,)),
    _RECOVERY["lost"]: (expected.lost, (0,)),
}
NAMES = {
    query: name
    for queries in (_MOVES, _DEAD, _RECOVERY)
    for name, query in queries.items()
    if query in REFERENCES
}


class Comparing:
    """The judge. `world` is how things stand after the last statement."""

    def __init__(self, observer: Observer, seen: Counter[str]) -> None:
        self._observer = observer
        self._seen = seen
        self.world = observer.look()
        self.complaints: list[str] = []
        self.log: list[str] = []
        self.unjudgeable = False

    def judge(self, query: Any, params: Any, rows: list[Any] | None, done: bool) -> None:
        """A statement that is no move must change nothing; so must one that was not done."""
        name = NAMES.get(query)
        if name is not None:
            self.log.append(name if done else f"{name} (not sent)")
            self._compare(name, REFERENCES[query] if done else None, params, rows)

    def nothing_else(self) -> None:
        """What lies between two moves has changed no row."""
        self._compare("something that is no move", None, {}, None)

    def _compare(
        self,
        name: str,
        reference: tuple[Reference, Sequence[int]] | None,
        params: dict[str, Any],
        rows: list[Any] | None,
    ) -> None:
        before, after = self.world, self._observer.look(self.world)
        self.world = after
        if reference is None:
            self._differ(name, before, after, before)
            return
        move, columns = reference
        wanted = before.copy()
        try:
            answer = move(wanted, Moment(before.now, after.now), params)
        except Unjudgeable:
            self.unjudgeable = True
            return
        self._check_order(name, wanted, after)
        self._differ(name, wanted, after, before)
        self._seen.update(
            f"{name}: {row[2 if name == 'renew' else 1]}" for row in answer if row[1:]
        )
        self._seen.update(name for row in answer if not row[1:])
        told = {tuple(_plain(row[column]) for column in columns) for row in rows or ()}
        if rows is not None and (told != answer or len(told) != len(rows)):
            self.complaints.append(
                f"{name} was answered by {sorted(map(str, told - answer))} in place of "
                f"{sorted(map(str, answer - told))}, in {len(rows)} rows of {len(answer)}"
            )

    def _check_order(self, name: str, wanted: World, after: World) -> None:
        """What is made gets larger numbers than all before, in the order that was asked for."""
        last = max((run["seq"] for run in wanted.runs.values() if "seq" in run), default=0)
        for run_id, run in wanted.runs.items():
            if "seq" in run or run_id not in after.runs:
                continue
            run["seq"] = after.runs[run_id]["seq"]
            if run["seq"] <= last and run["serial"]:
                self.complaints.append(f"after {name}: run {run_id} is out of order")
            last = max(last, run["seq"])

    def _differ(self, name: str, wanted: World, after: World, before: World) -> None:
        found = differences(wanted, after, before.now)
        self.complaints += [f"after {name}: {words}" for words in found]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value

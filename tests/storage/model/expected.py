"""What the moves must do: a second telling of each, in Python, over a `World`.

Each takes the world before and the statement's parameters, changes the world to what must stand
there afterwards, and returns the answer that must come, as tuples in any order. Written from the
rules in ARCHITECTURE.md, not from the SQL; `submitted.py` has the submit.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tests.storage.model.world import TERMINAL, At, Error, Row, Unjudgeable, World

Answer = set[tuple[Any, ...]]
ALIVE = ("queued", "running")
DAY = 86_400.0


class Moment:
    """The time of a statement: after the look before it, before the look behind it."""

    def __init__(self, since: datetime, until: datetime) -> None:
        self.since, self.until = since, until

    def reached(self, time: Any) -> bool:
        """Has this time come? Raises Unjudgeable if it came meanwhile."""
        if isinstance(time, At):
            return time.seconds <= 0
        if self.since < time <= self.until:
            raise Unjudgeable
        return bool(time <= self.since)


def claim(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    answer: Answer = set()
    verdicts = {  # all of them before anything moves
        run_id: _judged(world, moment, run, p["claim_id"]) if run else "gone"
        for run_id, run in ((run_id, world.runs.get(run_id)) for run_id in p["run_ids"])
    }
    for run_id, verdict in verdicts.items():
        if verdict == "claimed":
            _take(world, world.runs[run_id], p)
        elif verdict == "parked":
            world.runs[run_id]["parked"] = True
        number = world.runs[run_id]["claim_no"] if run_id in world.runs else None
        answer.add((run_id, verdict, number))
    return answer


def _judged(world: World, moment: Moment, run: Row, claim_id: str) -> str:
    if run["status"] == "running" and run["claim_id"] == claim_id:
        return "mine"
    if run["status"] != "queued" or moment.reached(run["deadline"]):
        return "gone"
    if not moment.reached(run["run_at"]):
        return "later"
    if not run["serial"] or run["claim_no"] > 0:
        return "claimed"
    siblings = _serial(world, run["session_id"])
    if any(_holds(other) for other in siblings):
        return "parked"
    before = [o for o in siblings if o["seq"] < run["seq"] and o["status"] == "queued"]
    return "parked" if any(moment.reached(other["run_at"]) for other in before) else "claimed"


def _take(world: World, run: Row, p: dict[str, Any]) -> None:
    run.update(
        status="running", parked=False, claim_no=run["claim_no"] + 1, attempts=run["attempts"] + 1,
        claim_id=p["claim_id"], worker_id=p["worker_id"], lease_until=At(p["lease_s"]),
        started_at=run["started_at"] or At(),
    )  # fmt: skip
    world.claims[run["run_id"], run["claim_no"]] = {
        "run_id": run["run_id"], "claim_no": run["claim_no"], "worker_id": p["worker_id"],
        "claim_id": p["claim_id"], "started_at": At(), "finished_at": None, "outcome": None,
        "by_worker": False, "error": None,
    }  # fmt: skip


def renew(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    answer: Answer = set()
    for run_id, claim_no in zip(p["run_ids"], p["claim_nos"], strict=True):
        run = world.runs.get(run_id)
        verdict = "lost"
        if run and _is_held(run, claim_no, p["worker_id"]):
            run["lease_until"] = At(p["lease_s"])
            verdict = "cancel" if run["cancel_requested_at"] else "kept"
        answer.add((run_id, claim_no, verdict))
    return answer


def _is_held(run: Row, claim_no: int, worker_id: str) -> bool:
    return (run["status"], run["claim_no"], run["worker_id"]) == ("running", claim_no, worker_id)


# Ends


def finish(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    answer: Answer = set()
    worker_id = p["worker_id"]
    names = ("run_ids", "claim_nos", "kinds", "results", "errors", "delays", "follow_ups")
    for run_id, claim_no, kind, result, error, delay_s, follow_up in zip(
        *(p[name] for name in names), strict=True
    ):
        run = world.runs[run_id]
        if not _is_held(run, claim_no, worker_id):
            ledger = world.claims.get((run_id, claim_no))
            mine = ledger and ledger["by_worker"] and ledger["worker_id"] == worker_id
            answer.add((run_id, "already" if mine else "stale", claim_no))
            continue
        status = _led_to(run, moment, kind, delay_s)
        _leave(world, run, status, kind, json.loads(error) if error else None, delay_s)
        if status == "succeeded":
            run["result"] = json.loads(result)
            if follow_up:
                answer |= _follow(world, run, json.loads(follow_up))
        answer.add((run_id, status, claim_no))
    freed = unpark(world, moment, _sessions(world, p["run_ids"], TERMINAL))
    return answer | {(run_id, "push", None) for run_id in freed}


def _led_to(run: Row, moment: Moment, kind: str, delay_s: float) -> str:
    if run["cancel_requested_at"] and kind != "failed":
        return "cancelled"
    if kind == "retry":
        late = moment.since.timestamp() + delay_s >= run["deadline"].timestamp()
        if late != (moment.until.timestamp() + delay_s >= run["deadline"].timestamp()):
            raise Unjudgeable
        return "failed" if run["attempts"] >= run["max_attempts"] or late else "queued"
    return "queued" if kind == "release" else kind


def _leave(
    world: World, run: Row, status: str, kind: str, error: Row | None, delay_s: float
) -> None:
    queued = status == "queued"
    run.update(
        status=status, worker_id=None, lease_until=None, claim_id=None,
        attempts=run["attempts"] - (kind == "release"),
        error=(error or run["error"]) if status in ("failed", "queued") else None,
        finished_at=None if queued else At(),
        hinted_at=At() if queued and kind == "release" else None,
    )  # fmt: skip
    if queued and delay_s > 0:
        run["run_at"] = At(delay_s)
    if queued and (delay_s > 0 or kind == "retry"):
        run["ready_at"] = At(delay_s)
    world.claims[run["run_id"], run["claim_no"]].update(
        finished_at=At(), by_worker=True, error=error, outcome=kind if queued else status
    )


def _follow(world: World, run: Row, follow_up: dict[str, Any]) -> Answer:
    f = follow_up["run"]
    born(
        world, run_id=f["run_id"], workspace_id=run["workspace_id"], session_id=None,
        agent=f["agent"], queue=f["queue"], serial=False, max_attempts=f["max_attempts"],
        run_at=At(f["delay_s"]), deadline=At(f["delay_s"] + DAY), follows=run["run_id"],
    )  # fmt: skip
    return {(f["run_id"], "push", None)}


def born(world: World, **fields: Any) -> None:
    """A row as it is made; `seq` is looked at by a rule of its own."""
    world.runs[fields["run_id"]] = {
        "status": "queued", "parked": False, "ready_at": fields["run_at"], "hinted_at": None,
        "claim_no": 0, "attempts": 0, "losses": 0, "claim_id": None, "worker_id": None,
        "lease_until": None, "unique_key": None, "replay_of": None, "resolved_by": None,
        "discarded_at": None, "follows": None, "cancel_requested_at": None, "result": None,
        "error": None, "created_at": At(), "started_at": None, "finished_at": None, **fields,
    }  # fmt: skip


def cancel(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    answer: Answer = set()
    own = [
        run_id for run_id in set(p["run_ids"])
        if run_id in world.runs and world.runs[run_id]["workspace_id"] == p["workspace_id"]
    ]  # fmt: skip
    for run_id in own:
        run = world.runs[run_id]
        asks = run["status"] == "running"
        ask(run)
        answer.add((run_id, "cancelling" if asks else run["status"]))
    freed = unpark(world, moment, _sessions(world, own, ("cancelled",)))
    return answer | {(run_id, "push") for run_id in freed}


def ask(run: Row) -> None:
    """Cancelled if it is queued, asked to stop if it is running; nothing if it has ended."""
    if run["status"] in ALIVE:
        run["cancel_requested_at"] = run["cancel_requested_at"] or At()
        if run["status"] == "queued":
            run.update(status="cancelled", parked=False, finished_at=At())


# Sweeps


def reclaim(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    lost = [
        run for run in world.runs.values()
        if run["status"] == "running" and moment.reached(run["lease_until"])
    ]  # fmt: skip
    for run in lost:
        losses = run["losses"] + 1
        status = "failed" if losses >= p["max_losses"] else "queued"
        status = "cancelled" if run["cancel_requested_at"] else status
        world.claims[run["run_id"], run["claim_no"]].update(
            finished_at=At(), outcome="lost", error=Error("worker_lost")
        )
        run.update(
            status=status, worker_id=None, lease_until=None, claim_id=None, losses=losses,
            attempts=run["attempts"] - 1, hinted_at=At(),
            finished_at=None if status == "queued" else At(),
            error=Error("worker_lost") if status == "failed" else run["error"],
        )  # fmt: skip
    return _swept(world, moment, lost, ("failed", "cancelled"))


def expire(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    late = [
        run for run in world.runs.values()
        if run["status"] == "queued" and moment.reached(run["deadline"])
    ]  # fmt: skip
    for run in late:
        kind = "deadline" if run["claim_no"] else "never_started"
        run.update(status="failed", parked=False, finished_at=At(), error=Error(kind))
    return _swept(world, moment, late, ("failed",))


def _swept(world: World, moment: Moment, runs: list[Row], ended: Iterable[str]) -> Answer:
    answer: Answer = {(run["run_id"], run["status"]) for run in runs}
    freed = unpark(world, moment, _sessions(world, [run["run_id"] for run in runs], ended))
    return answer | {(run_id, "push") for run_id in freed}


def free(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    return {(run_id, "push") for run_id in unpark(world, moment, set(p["session_ids"]))}


def lost(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    before, hinted_before = p["before_us"] / 1e6, p["hinted_before_us"] / 1e6
    found = [
        run for run in world.runs.values()
        if run["queue"] == p["queue"] and run["status"] == "queued" and not run["parked"]
        and run["ready_at"].timestamp() < before
        and (run["hinted_at"] is None or run["hinted_at"].timestamp() < hinted_before)
    ]  # fmt: skip
    for run in found:
        run["hinted_at"] = At()
    return {(run["run_id"],) for run in found}


# Dead letters


def replay(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    answer: Answer = set()
    pairs: dict[str, str] = {}
    for run_id, new_id in zip(p["run_ids"], p["new_ids"], strict=True):
        pairs.setdefault(run_id, new_id)  # one that is named twice is replayed once
    for run_id, new_id in pairs.items():
        run = world.runs[run_id]
        if run["workspace_id"] != p["workspace_id"]:
            continue
        if run["status"] != "failed":
            answer.add((run_id, run["status"], None))
        elif run["resolved_by"] is not None:
            verdict = "replayed" if run["resolved_by"] == new_id else "already"
            answer.add((run_id, verdict, run["resolved_by"]))
        else:
            run["resolved_by"] = new_id
            same = ("workspace_id", "session_id", "agent", "queue", "serial", "max_attempts")
            born(
                world, run_id=new_id, run_at=At(), deadline=At(DAY), replay_of=run_id,
                **{name: run[name] for name in same},
            )  # fmt: skip
            answer.add((run_id, "replayed", new_id))
    return answer


def discard(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    dead = [
        run for run in (world.runs[run_id] for run_id in set(p["run_ids"]))
        if run["status"] == "failed" and not run["resolved_by"] and not run["discarded_at"]
        and run["workspace_id"] == p["workspace_id"]
    ]  # fmt: skip
    for run in dead:
        run["discarded_at"] = At()
    return {(run["run_id"],) for run in dead}


# Turns


def _serial(world: World, session_id: str) -> list[Row]:
    runs = world.runs.values()
    return [run for run in runs if run["session_id"] == session_id and run["serial"]]


def _holds(run: Row) -> bool:
    return run["claim_no"] > 0 and run["status"] in ALIVE


def _sessions(world: World, run_ids: Iterable[str], statuses: Iterable[str]) -> set[str]:
    runs = [world.runs[run_id] for run_id in run_ids if run_id in world.runs]
    return {run["session_id"] for run in runs if run["serial"] and run["status"] in statuses}


def unpark(world: World, moment: Moment, session_ids: set[str]) -> list[str]:
    """Those that are given their session's turn: the first in line, if it is parked."""
    freed = []
    for session_id in session_ids:
        runs = _serial(world, session_id)
        if any(_holds(run) for run in runs):
            continue
        line = [
            run for run in runs if run["status"] == "queued" and run["claim_no"] == 0
            and (run["parked"] or moment.reached(run["run_at"]))
        ]  # fmt: skip
        first = min(line, key=lambda run: run["seq"], default=None)
        if first is not None and first["parked"]:
            first.update(parked=False, ready_at=At())
            freed.append(first["run_id"])
    return freed

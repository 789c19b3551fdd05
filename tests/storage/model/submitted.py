"""What a submit must do, told once more in Python over a `World`; see `expected.py`."""

import json
from datetime import datetime
from typing import Any

from tests.storage.model.expected import ALIVE, DAY, Answer, Moment, _holds, _serial, ask, born
from tests.storage.model.world import At, Row, World


def submit(world: World, moment: Moment, p: dict[str, Any]) -> Answer:
    members: list[Row] = json.loads(p["members"])
    runs: list[Row] = json.loads(p["runs"])
    of = {m["member"]: [run for run in runs if run["member"] == m["member"]] for m in members}
    refused = {m["member"]: _refused(world, moment, m, of[m["member"]]) for m in members}
    answer: Answer = set()
    for member in members:
        if "key" in member and refused[member["member"]] is None:
            world.keys.setdefault(_key(member), (member["body_hash"], member["run_ids"]))
    before = set(world.runs)
    for run in runs:
        if refused[run["member"]] is None and run["session_id"] is not None:
            world.sessions.setdefault(run["session_id"], run["workspace_id"])
            if run["on_conflict"] == "cancel_previous" and run["run_id"] not in before:
                answer |= _ask_all(world, run["session_id"], before)
    for run in runs:
        if refused[run["member"]] is None and run["run_id"] not in world.runs:
            _make(world, run)
    return answer | {_told(world, m, of[m["member"]], refused[m["member"]]) for m in members}


def _key(member: Row) -> tuple[int, str, str]:
    return member["workspace_id"], member["route"], member["key"]


def _refused(
    world: World, moment: Moment, member: Row, runs: list[Row]
) -> tuple[str, list[str]] | None:
    """(verdict, run ids) of a member that makes nothing."""
    if "key" in member and _key(member) in world.keys:
        body, made = world.keys[_key(member)]
        if made != member["run_ids"]:
            return ("replayed" if body == member["body_hash"] else "mismatch"), made
    for run in runs:
        if world.sessions.get(run["session_id"], run["workspace_id"]) != run["workspace_id"]:
            return "foreign", []
    for run in runs:
        if run["on_conflict"] == "reject" and run["run_id"] not in world.runs:
            for other in sorted(_serial(world, run["session_id"]), key=lambda o: o["seq"]):
                if _holds(other) or (other["status"] == "queued" and _due(moment, other)):
                    return "busy", [other["run_id"]]
    return None


def _due(moment: Moment, run: Row) -> bool:
    return moment.reached(run["run_at"])


def _ask_all(world: World, session_id: str, before: set[str]) -> Answer:
    """Every serial run of the session that is older and has not ended."""
    asked: Answer = set()
    for run in _serial(world, session_id):
        if run["run_id"] in before and run["status"] in ALIVE:
            if run["status"] == "running":
                asked.add((-1, "cancelling", (run["run_id"], run["worker_id"])))
            ask(run)
    return asked


def _make(world: World, run: Row) -> None:
    waits = [r for r in world.runs.values() if _waits_for(r, run)]
    if run["unique_key"] is not None and waits:
        return
    # The clients of this test name a wait or a deadline, never a time of a clock of their own.
    due = At(run["delay_s"] or 0.0)
    deadline = run["deadline"]
    same = ("run_id", "workspace_id", "session_id", "agent", "queue", "serial", "max_attempts")
    born(
        world, run_at=due, unique_key=run["unique_key"],
        deadline=datetime.fromisoformat(deadline) if deadline else At(due.seconds + DAY),
        **{name: run[name] for name in same},
    )  # fmt: skip


def _waits_for(other: Row, run: Row) -> bool:
    same = ("workspace_id", "unique_key")
    return (
        other["status"] == "queued"
        and other["claim_no"] == 0
        and all(other[name] == run[name] for name in same)
    )


def _told(
    world: World, member: Row, runs: list[Row], refused: tuple[str, list[str]] | None
) -> tuple[Any, ...]:
    number = member["member"]
    if refused is not None:
        return number, refused[0], tuple(refused[1])
    made = tuple(run_id for run_id in member["run_ids"] if run_id in world.runs)
    if made:
        return number, "created", made
    waiting = [r["run_id"] for r in world.runs.values() for run in runs if _waits_for(r, run)]
    return number, "replayed", tuple(waiting) or None

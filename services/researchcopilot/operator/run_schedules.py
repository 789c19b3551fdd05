"""RunSchedule: a schedule as an object of the cluster. The row is the object's: what is changed of
it elsewhere is put right, and it goes when the object goes.

A generation that cannot be acted upon (a bad rule, an agent that nobody has) leaves the row as the
generation before had it, and says so; it is looked at again at each list, since an agent may come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from researchcopilot.agents.catalogue import Catalogue
from researchcopilot.agents.new_runs import Door
from researchcopilot.agents.new_schedules import new_schedule
from researchcopilot.core.errors import BadInput
from researchcopilot.core.faults import Fault, common_code, of_input
from researchcopilot.core.schedules import Schedule, Tick
from researchcopilot.operator import status
from researchcopilot.operator.context import Context
from researchcopilot.operator.objects import WRITES_S, Seen
from researchcopilot.operator.projection import Wanted
from researchcopilot.operator.spec import SCHEDULE_FIELDS, asked, schedule_fields, told
from researchcopilot.storage import owned_schedules as stored
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.objects import Owner
from researchcopilot.storage.owned_schedules import Owned
from researchcopilot.storage.queue import SCHEDULES
from researchcopilot.storage.schedules import last_ticks

KIND = "RunSchedule"
# Ticks are shown so often at most: a schedule of each second would write each second.
TICKS_S = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """What is there of an object: what was acted upon, its schedule, and its last tick."""

    owned: Owned
    last: Tick | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A generation as it was found: the schedule that it asks for, or why there is none."""

    generation: int
    schedule: Schedule | None
    code: str = ""
    words: str = ""


class RunSchedules:
    """What a RunSchedule asks for, and what it shows."""

    kind = KIND
    plural = "runschedules"
    beat_s = 2.0

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings.operator
        self._door = Door(Catalogue(context.db), context.settings.api.max_input_bytes)
        self._judged: dict[str, Judged] = {}

    async def look(self, due: Sequence[Seen]) -> Mapping[str, Row]:
        uids = [seen.uid for seen in due]
        if not uids:
            return {}
        owned = await stored.owned(self._context.db, uids)
        last = await last_ticks(self._context.db, list(owned))
        return {uid: Row(found, last.get(uid)) for uid, found in owned.items()}

    async def settle(self, seen: Seen, found: Row | None, now: datetime) -> Wanted:
        if seen.deleting or (found is not None and found.owned.acted_on > seen.generation):
            return Wanted(None, not seen.deleting)
        judged = await self._judge(seen)
        schedule = found.owned.schedule if found else None
        if judged.schedule is not None and not self._is_right(seen, judged.schedule, found, now):
            try:
                schedule = await self._apply(seen, judged.schedule)
            except BadInput as error:
                judged = self._bad(seen, [of_input(error)])
        shown = self._shown(seen, judged, schedule, found.last if found else None, now)
        return Wanted(shown, True)

    async def clear(self) -> None:
        await stored.remove_orphans(self._context.db, self._settings.cluster)

    async def listed(self, uids: Sequence[str]) -> None:
        await stored.seen(self._context.db, uids)
        good = {uid: one for uid, one in self._judged.items() if one.schedule is not None}
        self._judged = {uid: good[uid] for uid in uids if uid in good}

    def pause_s(self, patch: status.Json) -> float:
        """What only says how it goes on can wait for the next."""
        return WRITES_S if "conditions" in patch or "observedGeneration" in patch else TICKS_S

    async def _judge(self, seen: Seen) -> Judged:
        """Once a generation: to ask of an input whether an agent takes it is dear."""
        known = self._judged.get(seen.uid)
        if known is not None and known.generation == seen.generation:
            return known
        faults: list[Fault] = []
        made: Schedule | None = None
        fields = schedule_fields(seen.spec, f"{seen.namespace}/{seen.name}", faults)
        if fields is not None:
            workspace_id = await workspace_id_of(self._context.db, self._settings.workspace)
            made = await new_schedule(self._door, workspace_id, fields, faults, seen.uid)
        judged = self._bad(seen, faults) if faults else Judged(seen.generation, made)
        self._judged[seen.uid] = judged
        return judged

    def _bad(self, seen: Seen, faults: Sequence[Fault]) -> Judged:
        words = told(faults, SCHEDULE_FIELDS)
        judged = Judged(seen.generation, None, common_code(faults), words)
        self._judged[seen.uid] = judged
        return judged

    def _is_right(self, seen: Seen, wanted: Schedule, found: Row | None, now: datetime) -> bool:
        schedule = found.owned.schedule if found else None
        if found is None or schedule is None or found.owned.asked != asked(seen.spec):
            return False
        try:
            right = stored.put_right(schedule, wanted, now, suspend=suspended(seen), anew=False)
        except BadInput:
            return False  # said when it is applied
        return right == schedule

    async def _apply(self, seen: Seen, wanted: Schedule) -> Schedule | None:
        owner = Owner(
            seen.uid, KIND, self._settings.cluster, seen.namespace, seen.name, wanted.workspace_id
        )
        done = await stored.apply(
            self._context.db,
            owner,
            wanted,
            generation=seen.generation,
            asked=asked(seen.spec),
            suspend=suspended(seen),
        )
        self._context.submitter.pusher.wake(SCHEDULES)
        return done

    def _shown(
        self,
        seen: Seen,
        judged: Judged,
        schedule: Schedule | None,
        last: Tick | None,
        now: datetime,
    ) -> status.Json:
        ready, reason, words = verdict(judged, schedule, suspended(seen))
        since = status.transition(seen.status, "Ready", ready, status.moment(now) or "")
        shown = status.shown(words, status.MESSAGE)
        ready_is = status.condition("Ready", ready, reason, shown, seen.generation, since)
        return status.without_nothing(
            {
                "observedGeneration": seen.generation,
                "scheduleId": schedule.schedule_id if schedule else None,
                "nextTickAt": status.moment(schedule.next_tick) if schedule else None,
                "lastTickAt": status.moment(last.tick) if last else None,
                "lastRunId": last.run_id if last else None,
                "lastRunPhase": status.PHASES[last.status] if last and last.status else None,
                "conditions": [ready_is, *([stalled(ready_is)] if reason not in MAY_PASS else [])],
            }
        )


# It is ready, or may yet become so by itself.
MAY_PASS = ("Scheduled", "Suspended", "Over", "UnknownAgent", "UnknownQueue", "Waiting")


def stalled(ready: Mapping[str, Any]) -> dict[str, Any]:
    """What tools that wait look at: nobody but a person can help."""
    return {**ready, "type": "Stalled", "status": "True"}


def verdict(judged: Judged, schedule: Schedule | None, suspend: bool) -> tuple[str, str, str]:
    """Ready, its reason in one word, and in a sentence."""
    if judged.schedule is None:
        goes_on = " What was asked for before goes on." if schedule is not None else ""
        return "False", status.reason_of(judged.code), judged.words + goes_on
    if schedule is None:
        return "False", "Waiting", "It is not a schedule yet."
    if schedule.paused_why is not None:
        return "False", "Halted", f"It was paused: {schedule.paused_why}. Change it to go on."
    if suspend:
        return "True", "Suspended", "It is suspended, as it asks for."
    if schedule.next_tick is None:
        return "True", "Over", "It has had its last tick."
    return "True", "Scheduled", ""


def suspended(seen: Seen) -> bool:
    return bool(seen.spec.get("suspend"))

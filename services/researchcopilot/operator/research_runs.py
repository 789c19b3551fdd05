"""ResearchRun: a run as an object of the cluster. `kubectl apply` submits it, its status shows what
becomes of it, deleting it cancels the run.

One run for each generation that asks for something else: whatever is not asked for any more is
cancelled. The rows decide; the object's status is only read to know that nothing is left to do.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from researchcopilot.agents.catalogue import Catalogue
from researchcopilot.agents.new_runs import Door, new_run
from researchcopilot.core.errors import BadInput
from researchcopilot.core.faults import Fault, common_code
from researchcopilot.core.models import NewRun
from researchcopilot.operator import status
from researchcopilot.operator.context import Context
from researchcopilot.operator.objects import WRITES_S, Seen
from researchcopilot.operator.projection import Wanted
from researchcopilot.operator.spec import KEEPING, RUN_FIELDS, asked, run_fields, told
from researchcopilot.storage import objects as stored
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.objects import Owner, Standing

KIND = "ResearchRun"


class ResearchRuns:
    """What a ResearchRun asks for, and what it shows."""

    kind = KIND
    plural = "researchruns"
    beat_s = 0.5

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings.operator
        self._catalogue = Catalogue(context.db)
        self._door = Door(self._catalogue, context.settings.api.max_input_bytes)

    async def look(self, due: Sequence[Seen]) -> Mapping[str, Standing]:
        uids = [seen.uid for seen in due if not is_over(seen)]
        if not uids:
            return {}
        return await stored.standing(self._context.db, uids, excerpt=2 * status.ANSWER)

    async def settle(self, seen: Seen, found: Standing | None, now: datetime) -> Wanted:
        if is_over(seen):
            # Nothing else of it is looked at any more, and an input can be large.
            seen.spec = {name: seen.spec[name] for name in KEEPING if name in seen.spec}
            return Wanted(None, False, expires(seen, seen.status))
        if found is not None and found.acted_on > seen.generation:
            return Wanted(None, True)  # another operator has heard of more than we have
        if found is not None and is_current(found, seen):
            return self._shown(seen, found)
        if seen.deleting:
            return Wanted(None, False)
        wanted = await self._begin(seen, found, now)
        if found is not None:
            await self.clear()  # what was asked for before is not wanted any more
        return wanted

    async def clear(self) -> None:
        context = self._context
        await stored.cancel_unwanted(context.db, context.submitter.pusher, self._settings.cluster)

    async def listed(self, uids: Sequence[str]) -> None:
        """Nobody asks for these when they were seen."""

    def pause_s(self, patch: status.Json) -> float:
        return WRITES_S

    def _shown(self, seen: Seen, found: Standing) -> Wanted:
        wanted = status.of_run(found, seen.generation, seen.status)
        ended = wanted["phase"] in status.ENDED
        return Wanted(wanted, not ended, expires(seen, wanted) if ended else None)

    async def _begin(self, seen: Seen, before: Standing | None, now: datetime) -> Wanted:
        """Submit what this generation asks for, or say why not."""
        faults: list[Fault] = []
        run = await self._new_run(seen, faults)
        if run is None or faults:
            if common_code(faults) == "unknown_agent" and not await self._catalogue.agents():
                return self._waits(seen, faults, now)
            return await self._refuse(
                seen, before, common_code(faults), told(faults, RUN_FIELDS), now
            )
        quota = self._settings.runs_per_namespace
        try:
            placed = await stored.submit(
                self._context.db,
                self._context.submitter.pusher,
                self._owner(seen, run.workspace_id),
                run,
                generation=seen.generation,
                asked=asked(seen.spec),
                quota=quota,
            )
        except BadInput as error:  # its session is another's, or busy
            return await self._refuse(seen, before, error.code, error.message, now)
        if placed.verdict == "gone":
            return Wanted(None, False)
        if placed.verdict == "quota":
            words = (
                f"{placed.held} ResearchRuns of the namespace {seen.namespace} have not ended, and "
                f"at most {quota} may be so (RC_OPERATOR_RUNS_PER_NAMESPACE). Wait for them or "
                "delete some, then delete this one and apply it again."
            )
            return await self._refuse(seen, before, "quota_exceeded", words, now)
        made = await stored.standing(self._context.db, [seen.uid], excerpt=2 * status.ANSWER)
        return self._shown(seen, made[seen.uid])

    async def _new_run(self, seen: Seen, faults: list[Fault]) -> NewRun | None:
        fields = run_fields(seen.spec, faults)
        if fields is None:
            return None
        workspace_id = await workspace_id_of(self._context.db, self._settings.workspace)
        # Without a session of its own choice the object is a conversation: each generation a turn.
        session_id = fields["session_id"] or seen.uid
        return await new_run(self._door, workspace_id, fields, session_id, "$", faults)

    def _owner(self, seen: Seen, workspace_id: int) -> Owner:
        return Owner(
            seen.uid, KIND, self._settings.cluster, seen.namespace, seen.name, workspace_id
        )

    def _waits(self, seen: Seen, faults: Sequence[Fault], now: datetime) -> Wanted:
        at = status.moment(now) or ""
        words = told(faults, RUN_FIELDS)
        shown = status.waits("NoWorkerYet", words, seen.generation, seen.status, at)
        return Wanted(shown, True)

    async def _refuse(
        self, seen: Seen, before: Standing | None, code: str, words: str, now: datetime
    ) -> Wanted:
        if before is not None:
            await stored.refused(self._context.db, seen.uid, seen.generation)
        shown = status.refused(status.reason_of(code), words, seen.generation, now)
        return Wanted(shown, False, expires(seen, shown))


def is_current(found: Standing, seen: Seen) -> bool:
    """Is it the run of what the object asks for now, whatever generation that is by now?"""
    if found.generation != found.acted_on:
        return False  # a later one was refused
    return found.generation == seen.generation or found.asked == asked(seen.spec)


def is_over(seen: Seen) -> bool:
    """Does the object show the end of what it asks for?"""
    return (
        seen.status.get("phase") in status.ENDED
        and seen.status.get("observedGeneration") == seen.generation
    )


def expires(seen: Seen, shown: Mapping[str, Any]) -> datetime | None:
    """When the object is to be deleted, by its ttlSecondsAfterFinished."""
    seconds, finished = seen.spec.get("ttlSecondsAfterFinished"), shown.get("finishedAt")
    if seconds is None or not finished or seen.deleting:
        return None
    return datetime.fromisoformat(str(finished)) + timedelta(seconds=float(seconds))

"""The hints of a model test: what stands in Redis, and what must stand there with whole wires."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.storage.model.actors import QUEUES, Worker
from tests.storage.model.world import World


@dataclass(frozen=True, slots=True)
class Hints:
    """What stands in Redis: of each queue the list and the delayed set, and each worker's hands."""

    waiting: dict[str, list[str]]
    delayed: dict[str, list[str]]
    hands: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def run_ids(self, workers: Sequence[Worker]) -> set[str]:
        """Runs that a list will still bring to a worker. Not those that one who lives has in its
        hands and in its memory: it drops what it holds once it is told that it has lost it."""
        known = {worker.worker_id: worker.handback.known for worker in workers}
        promising = [
            entry
            for (queue, worker_id), entries in self.hands.items()
            for entry in entries
            if (queue, entry) not in known.get(worker_id, ()) or entries.count(entry) > 1
        ]
        lists = (*self.waiting.values(), *self.delayed.values(), promising)
        return {entry.partition(".")[2] for entries in lists for entry in entries}

    def left(self) -> list[str]:
        """All entries but probes, and where they stand."""
        places = (("waiting", self.waiting), ("delayed", self.delayed), ("hands", self.hands))
        return [
            f"{entry} in {name} {key}"
            for name, lists in places
            for key, entries in lists.items()
            for entry in entries
            if not entry.startswith("probe.")
        ]


def unhinted(world: World, hints: Hints, workers: Sequence[Worker]) -> set[str]:
    """Runs that wait for a worker and stand in no list: their push was lost."""
    waiting = {
        run_id for run_id, run in world.runs.items()
        if run["status"] == "queued" and not run["parked"] and run["deadline"] > world.now
    }  # fmt: skip
    return waiting - hints.run_ids(workers)


def forgotten(
    worker: Worker, known: set[tuple[str, str]], before: Hints, after: Hints
) -> list[str]:
    """What a worker has dealt with leaves its list: no entry may stay that it no longer knows. One
    of two may: it came once more, by an answer that was lost, and the next look finds it."""
    held = {run_id for run_id, _ in worker.held}
    words: list[str] = []
    for queue in QUEUES:
        hands = queue, worker.worker_id
        unknown = {e for e in after.hands[hands] if (queue, e) not in worker.handback.known}
        had = before.hands.get(hands, [])
        unknown -= {e for e in had if (queue, e) not in known}
        unknown -= {e for e in had if had.count(e) > after.hands[hands].count(e)}
        words += [
            f"{entry} stays in the hands of worker {worker.worker_id}, who has forgotten it"
            for entry in unknown
            if entry.partition(".")[2] not in held
        ]
    return words

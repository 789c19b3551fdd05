"""All verbs in any order, with a crash between any two statements: a model of what must be true.

    python -m pytest tests/storage/test_model.py --hypothesis-profile=long

looks for minutes, and must have been where it hurts. Every example is another one: what fails is a
finding, and hypothesis prints the steps that lead there. See tests/storage/model/machine.py for
the rules, and stories.py for what chance alone finds too seldom.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.storage.model.stage import Stage
from tests.storage.model.stories import Stories

# Examples by size of a group, since a large one takes longer.
QUICK = {1: 14, 64: 6}
# Of the long profile's examples a large group gets one in so many.
SHARE = {1: 1, 64: 3}
# Where a long look has to have been; else the rules have held for nothing.
HURTS = {
    "cut: crash at postgres", "cut: hang up at postgres", "cut: crash at redis",
    "cut: hang up at redis", "submit: replayed", "submit: mismatch", "submit: foreign",
    "submit: busy", "submit: cancelling", "claim: claimed", "claim: mine", "claim: later",
    "claim: parked", "claim: gone", "renew: kept", "renew: cancel", "renew: lost",
    "finish: succeeded", "finish: failed", "finish: cancelled", "finish: queued", "finish: already",
    "finish: stale", "finish: push", "cancel: cancelled", "cancel: cancelling", "cancel: push",
    "reclaim: queued", "reclaim: cancelled", "expire: failed", "replay: replayed",
    "replay: already", "lost", "discard",
}  # fmt: skip


@pytest.fixture
def stage(database_url: str, redis_url: str) -> Iterator[Stage]:
    stage = Stage(database_url, redis_url)
    try:
        yield stage
    finally:
        stage.close()


@pytest.mark.parametrize("group", [1, 64])
def test_the_model_holds_whatever_is_cut(stage: Stage, group: int) -> None:
    """After each statement each row, each answer and each hint is as the model says; and at the
    end of each example, with whole wires, every run ends and Redis is empty."""

    class Here(Stories):
        def __init__(self) -> None:
            super().__init__(stage, group)

    long = settings.get_current_profile_name() == "long"
    effort = settings(
        max_examples=settings().max_examples // SHARE[group] if long else QUICK[group],
        stateful_step_count=80 if long else 50,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Here, settings=effort)
    never = HURTS - stage.seen.keys()
    assert not (long and never), f"in all these examples it was never at {sorted(never)}"

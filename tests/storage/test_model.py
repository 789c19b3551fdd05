"""All verbs in any order, with a crash between any two statements: a model of what must be true.

    python -m pytest tests/storage/test_model.py --hypothesis-profile=long

looks longer than `make test` does. Every example is another one: what fails is a finding, and
hypothesis prints the steps that lead there. See tests/storage/model/machine.py.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.storage.model.machine import Machine
from tests.storage.model.stage import Stage

QUICK = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1000, stateful_step_count=60)
settings.register_profile("long", LONG)


@pytest.fixture
def stage(database_url: str, redis_url: str) -> Iterator[Stage]:
    stage = Stage(database_url, redis_url)
    try:
        yield stage
    finally:
        stage.close()


@pytest.mark.parametrize("group", [1, 64])
def test_the_model_holds_whatever_is_cut(stage: Stage, group: int) -> None:
    class Here(Machine):
        def __init__(self) -> None:
            super().__init__(stage, group)

    effort = LONG if settings.get_current_profile_name() == "long" else QUICK
    run_state_machine_as_test(Here, settings=effort)

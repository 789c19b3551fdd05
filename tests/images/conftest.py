"""Builds the images once for all tests of this folder. Kept for `make images`: it takes minutes."""

import os
from collections.abc import Iterator

import pytest
from tests.images.engine import TARGETS, Engine

if not os.environ.get("TESTS_IMAGES"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The images of this work tree, built. TESTS_IMAGES=built: those of the last time."""
    engine = Engine()
    for target in TARGETS if os.environ["TESTS_IMAGES"] != "built" else ():
        engine.build(target)
    print("\n" + engine.table())
    yield engine
    engine.remove_containers()

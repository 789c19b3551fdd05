"""The programs `helm` of both major versions. Kept for `make helm`, which fetches them."""

import os
from pathlib import Path

import pytest
from tests.helm.program import PACKAGES, Helm, unpacked

if not os.environ.get("TESTS_HELM"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", params=PACKAGES)
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    folder: Path = tmp_path_factory.mktemp("helm")
    return Helm(unpacked(PACKAGES[request.param], folder), folder)

"""NOTES.txt: commands that can be run as they stand, and what Helm cannot see for the user."""

from typing import Any

import pytest
from tests.chart.engine import load, texts
from tests.chart.matrix import EXTERNAL, MATRIX, PRODUCTION


def notes(values: dict[str, Any]) -> str:
    return texts(load(), values)["NOTES.txt"]


@pytest.mark.parametrize("name", MATRIX)
def test_it_is_whole_for_all_values(name: str) -> None:
    text = notes(MATRIX[name])
    assert "<nil>" not in text
    assert "<no value>" not in text
    assert "The next three commands" in text


def test_secrets_of_the_user_s_own_are_told_of() -> None:
    """Protects: a rotated password that Helm cannot see, and Pods that go on with the old one."""
    assert "rollout restart" not in notes({})
    text = notes(PRODUCTION)
    assert "app-db, app-db-password, app-db-ca, app-redis, app-redis-ca, app-key." in text
    assert "rollout restart deploy -l app.kubernetes.io/instance=rc" in text
    assert "rollout restart" in notes(EXTERNAL)


def test_bundled_servers_are_told_to_be_for_trying_out() -> None:
    assert "for trying out: no replica, no backup" in notes({})
    assert "for trying out" not in notes(PRODUCTION)

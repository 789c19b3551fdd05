"""The chart, loaded once into the real engine; each render takes milliseconds and no cluster."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.chart.engine import Object, load, render

Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def chart() -> Render:
    """`chart({"api": {"replicas": 3}})` → the objects that would be installed."""
    loaded, done = load(), dict[str, list[Object]]()

    def rendered(values: dict[str, Any] | None = None, **options: Any) -> list[Object]:
        asked = json.dumps([values, options], sort_keys=True)
        if asked not in done:
            done[asked] = render(loaded, values or {}, **options)
        return done[asked]

    return rendered

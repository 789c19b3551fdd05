"""An API server for each test that wants one."""

from collections.abc import AsyncIterator

import pytest
from tests.operator.cluster import Served, serving


@pytest.fixture
async def served(anyio_backend: str) -> AsyncIterator[Served]:
    async with serving() as found:
        yield found

"""/readyz of the parts without requests and without runs names a server that goes away while they
are at work; /livez does not, since a restart would not help."""

from urllib.request import urlopen

import pytest
from tests.conftest import Parts
from tests.services.conftest import Fragile
from tests.support import eventually

from researchcopilot.dev.parts import Part

pytestmark = pytest.mark.anyio


def live(part: Part) -> bool:
    with urlopen(f"http://127.0.0.1:{part.ports['health']}/livez", timeout=5) as answer:
        return int(answer.status) == 200


@pytest.mark.parametrize("name", ["janitor", "scheduler"])
async def test_readyz_names_the_server_that_went_away(
    parts: Parts, fragile: Fragile, name: str
) -> None:
    part = parts(name, **{**fragile.environment, "RC_LEASE_SECONDS": "0.6"})
    try:
        fragile.valkey.stop()
        await eventually(lambda: "redis: " in (part.complaint() or ""))
        assert "postgres: " not in (part.complaint() or "")
        fragile.valkey.start()
        await eventually(part.ready)
        fragile.postgres.kill()
        await eventually(lambda: "postgres: " in (part.complaint() or ""))
        assert "redis: " not in (part.complaint() or "")
        assert live(part)
        fragile.postgres.start()
        await eventually(part.ready)
    finally:
        fragile.start()

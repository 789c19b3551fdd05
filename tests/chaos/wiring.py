"""The embedded stack with a line of the proxy between each part and each server.

Only the parts go over lines: the schema, the driver and the servers themselves do not.
"""

from pathlib import Path

from tests.chaos.proxy import HOST, Network

from researchcopilot.dev.parts import Part
from researchcopilot.dev.postgres import DATABASE
from researchcopilot.dev.stack import Plan, Stack

POSTGRES, REDIS = "Postgres", "Redis"
ROOT = Path(__file__).parents[2]


class Wired(Stack):
    """`add` gives a part the addresses of its own lines."""

    def __init__(self, plan: Plan, network: Network) -> None:
        super().__init__(plan)
        self._network = network

    def add(self, name: str, part: str, **environ: str) -> Part:
        postgres = self._network.line(name, POSTGRES, lambda: self.postgres.port)
        valkey = self._network.line(name, REDIS, lambda: self.valkey.port)
        urls = {
            "RC_DATABASE_URL": f"postgresql://postgres@{HOST}:{postgres.port}/{DATABASE}",
            "RC_REDIS_URL": f"redis://{HOST}:{valkey.port}/0",
        }
        return super().add(name, part, **urls, **environ)

"""What every room of the operator is given. None of them holds anything that has to survive: that
is in Postgres, or is on the object itself."""

from dataclasses import dataclass

from researchcopilot.core.settings import Settings
from researchcopilot.operator.kube import Kube
from researchcopilot.runtime.loop import Stop
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.submit import Submitter


@dataclass(frozen=True, slots=True)
class Context:
    """`namespace` is where the workers of this release are. `kube` is the door to the API server
    for all that we ask and write; kopf, on sessions of its own, lists and watches, and nothing
    else."""

    settings: Settings
    namespace: str
    db: Database
    redis: Queue
    submitter: Submitter
    kube: Kube
    stop: Stop

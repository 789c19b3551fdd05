"""Worker Pods: their events, and what they say of the processes in them."""

import kopf

from researchcopilot.operator.context import Context


def register_pods(registry: kopf.OperatorRegistry, context: Context) -> None:
    """Its handlers."""

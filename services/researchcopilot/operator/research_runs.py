"""ResearchRun: a run as an object of the cluster."""

import kopf

from researchcopilot.operator.context import Context


def register_research_runs(registry: kopf.OperatorRegistry, context: Context) -> None:
    """Its handlers."""

"""RunSchedule: a schedule as an object of the cluster."""

import kopf

from researchcopilot.operator.context import Context


def register_run_schedules(registry: kopf.OperatorRegistry, context: Context) -> None:
    """Its handlers."""

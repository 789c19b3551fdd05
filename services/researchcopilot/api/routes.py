"""Every operation there is, the busiest first."""

from researchcopilot.api import (
    actions,
    agents,
    dead_letters,
    documents,
    memories,
    reports,
    runs,
    schedules,
    sessions,
    submit,
    welcome,
)

OPERATIONS = (
    *submit.OPERATIONS,
    *actions.OPERATIONS,  # before runs: `{run_id}` would match `{run_id}:cancel` too
    *runs.OPERATIONS,
    *sessions.OPERATIONS,
    *dead_letters.OPERATIONS,
    *schedules.OPERATIONS,  # `:pause` and the like before the id alone
    *agents.OPERATIONS,
    *documents.OPERATIONS,
    *reports.OPERATIONS,
    *memories.OPERATIONS,
    *welcome.OPERATIONS,
)

"""What a worker measures. No run ids, no worker ids: a series for each process start never ends."""

from prometheus_client import Counter, Gauge, Histogram

_MINUTES = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

VERDICTS = Counter(
    "researchcopilot_claim_verdicts_total", "Verdicts of the claim", ["queue", "verdict"]
)
FINISHED = Counter(
    "researchcopilot_runs_finished_total",
    "Claims that ended, by where they led: succeeded, failed, cancelled, retry, release, stale",
    ["queue", "agent", "outcome"],
)
WAITED = Histogram(
    "researchcopilot_run_wait_seconds", "From ready to claimed", ["queue"], buckets=_MINUTES
)
RAN = Histogram(
    "researchcopilot_run_seconds", "From claimed to finished", ["queue", "agent"], buckets=_MINUTES
)
GROUPS = Histogram("researchcopilot_group_size", "Members of a group", ["group"], buckets=_SIZES)
SLOTS = Gauge("researchcopilot_worker_slots", "Slots of this worker", ["queue", "state"])
RENEWALS = Counter("researchcopilot_renewals_total", "Leases renewed, by verdict", ["verdict"])
EMITS_LOST = Counter("researchcopilot_events_given_up_total", "Events that could not be stored")
ABANDONED = Counter(
    "researchcopilot_agents_abandoned_total", "Agents that went on after they were told to stop"
)
LOST_THREADS = Gauge(
    "researchcopilot_lost_threads", "Threads that agents keep although their run has ended"
)
ISOLATED = Counter(
    "researchcopilot_runs_isolated_total", "Runs that got a process of their own, by why", ["why"]
)
CRASHED = Counter(
    "researchcopilot_agents_crashed_total", "Processes of isolated runs that ended early", ["how"]
)
TOLD = Counter(
    "researchcopilot_cancellations_told_total", "Runs in hand that were asked to stop, by whom",
    ["by"],
)  # fmt: skip
FOUND = Counter(
    "researchcopilot_entries_found_total", "Entries in this worker's list that it did not know"
)

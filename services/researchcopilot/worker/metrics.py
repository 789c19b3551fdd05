"""What a worker measures. No run ids, no worker ids: a series for each process start never ends."""

from prometheus_client import Counter, Gauge, Histogram

_MINUTES = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

VERDICTS = Counter(
    "researchcopilot_claim_verdicts_total", "Verdicts of the claim", ["queue", "verdict"]
)
FINISHED = Counter(
    "researchcopilot_runs_finished_total",
    "Claims that ended, by where they led: succeeded, failed, cancelled, retry, release, stale",
    ["queue", "agent", "outcome"],
)
WAITED = Histogram(
    "researchcopilot_run_wait_seconds",
    "From ready to claimed, of runs that were never taken back or released: those were ready "
    "before they ran",
    ["queue"],
    buckets=_MINUTES,
)
RAN = Histogram(
    "researchcopilot_run_seconds", "From claimed to finished", ["queue", "agent"], buckets=_MINUTES
)
ATTEMPTS = Histogram(
    "researchcopilot_run_attempts",
    "Attempts of runs that a worker has ended",
    ["agent"],
    buckets=(1, 2, 3, 4, 5, 7, 10, 20, 50, 100),
)
RETRIES = Counter(
    "researchcopilot_retries_total",
    "Claims after which another attempt follows: error, asked (by the agent), timed_out, crashed",
    ["agent", "reason"],
)
RECOVERED = Histogram(
    "researchcopilot_reclaimed_wait_seconds",
    "From taken back from a worker to claimed by the next, by the database's clock",
    ["queue"],
    buckets=_MINUTES,
)
SLOTS = Gauge("researchcopilot_worker_slots", "Slots: busy, idle", ["queue", "state"])
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

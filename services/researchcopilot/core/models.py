"""What the parts pass to each other: frozen records. Ids are canonical UUID strings."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from researchcopilot.core.states import Status


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run as it is submitted. `session_id` None (system runs only) means no conversation.

    `on_conflict` with the other runs of its session: queue, reject, cancel_previous; `serial` False
    is parallel. `unique_key`: at most one unclaimed run of that key in the workspace.
    `delay_s` and `run_at` exclude each other; both None means now. Times are aware datetimes.
    """

    run_id: str
    workspace_id: int
    agent: str
    queue: str
    input: Any
    session_id: str | None
    serial: bool = True
    on_conflict: str = "queue"
    metadata: dict[str, str] = field(default_factory=dict)
    max_attempts: int = 3
    timeout_s: float | None = None
    deadline: datetime | None = None
    run_at: datetime | None = None
    delay_s: float | None = None
    unique_key: str | None = None


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """One client's name for one request. `body_hash` is SHA-256 hex of the canonical body."""

    workspace_id: int
    route: str
    key: str
    body_hash: str


@dataclass(frozen=True, slots=True)
class Submission:
    """One member of a group of submits: all of its runs or none. Runs share a workspace.

    A run with a `unique_key` comes alone and without an idempotency key: where another one waits
    already it is not made, and a key would name for a day what there never was.
    """

    runs: tuple[NewRun, ...]
    idempotency: IdempotencyKey | None = None

    def __post_init__(self) -> None:
        if any(run.unique_key is not None for run in self.runs) and (
            len(self.runs) > 1 or self.idempotency is not None
        ):
            raise ValueError("a run with a unique_key comes alone and without an idempotency key")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a Submission.

    `replayed`: nothing was made; `run_ids` are those of the first request (or, for a unique_key,
    of the run that waits already) and the times are empty. Else the times are those of the rows,
    in the order of the runs.
    """

    run_ids: tuple[str, ...]
    replayed: bool = False
    created_at: datetime | None = None
    run_at: tuple[datetime, ...] = ()
    deadline: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in a Redis list: ids and nothing else. Text form `<workspace_id>.<run_id>`."""

    workspace_id: int
    run_id: str

    def __str__(self) -> str:
        return f"{self.workspace_id}.{self.run_id}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A run in the hands of one worker: the fence is (run_id, claim_no, worker_id)."""

    run_id: str
    claim_no: int
    worker_id: str
    workspace_id: int
    session_id: str | None
    queue: str
    agent: str
    input: Any
    metadata: dict[str, str]
    attempts: int
    max_attempts: int
    losses: int
    timeout_s: float | None
    deadline: datetime
    created_at: datetime
    ready_at: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `claim` says of one id: claimed or mine (with the claim), later, parked, gone.

    `wait_s`: for `later` until it is due; for the first two how long it has been ready.
    """

    run_id: str
    verdict: str
    claim: Claim | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a claim ended, as its worker says it.

    `kind`: succeeded, failed, cancelled, retry, release. `delay_s` for retry and release.
    `result` is JSON text, already cleaned and within limits; `error` is {"type", "message", …}.
    `follow_up` is JSON text: what is to come of the run if it succeeds, see finish_1.
    `reason` says in one word why it is a retry; for metrics.
    """

    run_id: str
    claim_no: int
    worker_id: str
    kind: str
    result: str | None = None
    error: dict[str, str] | None = None
    delay_s: float = 0.0
    follow_up: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """What `finish` says of one claim: a new status, `already` (it had committed) or `stale`."""

    run_id: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What `cancel` says of one run: its status, or `cancelling` if its worker has to be told."""

    run_id: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What `replay` says of one run: replayed or already (`new_run_id`), else its status."""

    run_id: str
    verdict: str
    new_run_id: str | None


@dataclass(frozen=True, slots=True)
class Due:
    """An entry that has to be pushed after a commit: `delay_s` > 0 goes to the delayed set."""

    queue: str
    entry: Entry
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run as people see it. Where it comes from: the schedule whose tick made it, the run that
    it `follows` (a digest), the dead letter that it is a `replay_of`; `resolved_by`: its replay."""

    run_id: str
    workspace_id: int
    session_id: str | None
    agent: str
    queue: str
    status: Status
    parked: bool
    input: Any
    metadata: dict[str, str]
    result: Any
    error: dict[str, str] | None
    claim_no: int
    attempts: int
    max_attempts: int
    losses: int
    timeout_s: float | None
    worker_id: str | None
    index_version: int | None
    schedule_id: str | None
    follows: str | None
    replay_of: str | None
    resolved_by: str | None
    run_at: datetime
    deadline: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class Message:
    """A line of a session's conversation. `role`: user, assistant, digest."""

    message_id: int
    session_id: str
    run_id: str
    role: str
    payload: Any
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as a worker announces it. `input_schema` is JSON Schema or None; `max_attempts` is
    for runs whose request names none."""

    name: str
    version: str
    queue: str
    description: str
    input_schema: dict[str, Any] | None = None
    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker process start. `queues` maps a queue to its slots. `process_started_at` is by the
    clock of its node, and tells the processes of one Pod apart; nothing else is decided by it."""

    worker_id: str
    queues: dict[str, int]
    agents: tuple[AgentInfo, ...]
    host: str
    pid: int
    version: str
    pod: str | None = None
    pod_uid: str | None = None
    pod_namespace: str | None = None
    process_started_at: datetime | None = None

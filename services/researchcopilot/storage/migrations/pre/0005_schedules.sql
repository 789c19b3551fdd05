-- Schedules: what the clock starts; each of their ticks, and what became of it; locks.

CREATE TABLE schedules (
    schedule_id  uuid PRIMARY KEY,
    workspace_id int NOT NULL REFERENCES workspaces,
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    system       boolean NOT NULL,      -- made by the product: pausable, not deletable
    session_id   uuid,                  -- the conversation of its runs; made with the first of them

    agent        text NOT NULL,
    queue        text,                  -- NULL: the agent's own
    input        jsonb NOT NULL,
    metadata     jsonb NOT NULL DEFAULT '{}',
    max_attempts int CHECK (max_attempts BETWEEN 1 AND 100),   -- NULL: the agent's own
    timeout_s    double precision CHECK (timeout_s > 0),
    deadline_s   double precision CHECK (deadline_s > 0),   -- after a run is due
    unique_key   text,                  -- at most one unclaimed run of this key

    cron         text,
    timezone     text NOT NULL DEFAULT 'UTC',
    interval_s   double precision CHECK (interval_s >= 1),
    anchor       timestamptz NOT NULL,  -- what an interval counts from
    starts_at    timestamptz,
    ends_at      timestamptz,
    misfire      text NOT NULL CHECK (misfire IN ('skip', 'latest', 'all')),
    overlap      text NOT NULL CHECK (overlap IN ('skip', 'allow')),
    jitter_s     double precision NOT NULL DEFAULT 0 CHECK (jitter_s BETWEEN 0 AND 86400),

    paused_at    timestamptz,
    paused_why   text,                  -- set when the product itself paused it
    next_tick    timestamptz,           -- the oldest tick that nobody has dealt with; NULL: none
    revision     int NOT NULL DEFAULT 1,   -- grows with every change but those of next_tick
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,

    UNIQUE (workspace_id, name),
    CONSTRAINT one_rule CHECK ((cron IS NULL) <> (interval_s IS NULL)),
    CONSTRAINT ends_after_it_starts CHECK (ends_at > starts_at),
    CONSTRAINT paused_has_no_tick CHECK (paused_at IS NULL OR next_tick IS NULL),
    CONSTRAINT a_reason_is_of_a_pause CHECK (paused_why IS NULL OR paused_at IS NOT NULL),
    CONSTRAINT all_at_once_must_overlap CHECK (misfire <> 'all' OR overlap = 'allow'),
    CONSTRAINT people_have_sessions CHECK (system = (session_id IS NULL))
) WITH (fillfactor = 80);
CREATE INDEX schedules_due ON schedules (next_tick) WHERE next_tick IS NOT NULL;

-- One row for each tick that was dealt with, whatever came of it. The primary key is the guarantee
-- that no tick fires twice: locks and clocks may fail.
CREATE TABLE ticks (
    schedule_id  uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    tick         timestamptz NOT NULL,  -- when, by the rule; for a trigger the moment itself
    workspace_id int NOT NULL,
    cause        text NOT NULL CHECK (cause IN ('clock', 'trigger')),
    outcome      text NOT NULL CHECK (outcome IN
                 ('fired',     -- run_id is its run
                  'merged',    -- run_id is a run of the same unique key that had not begun
                  'overlap',   -- skipped: the run before had not ended
                  'missed')),  -- skipped by the misfire rule
    until        timestamptz,           -- missed: this row stands for every tick before that
    run_id       uuid,
    fired_at     timestamptz NOT NULL,  -- when it was dealt with
    PRIMARY KEY (schedule_id, tick),
    CONSTRAINT fired_has_a_run CHECK ((outcome IN ('fired', 'merged')) = (run_id IS NOT NULL)),
    CONSTRAINT only_the_missed_stand_for_more CHECK (until IS NULL OR outcome = 'missed'),
    CONSTRAINT never_before_its_time CHECK (fired_at >= tick)
);
CREATE INDEX ticks_age ON ticks (fired_at);

-- Which runs a schedule has under way: what overlap asks. NULL for all other runs.
ALTER TABLE runs ADD COLUMN schedule_id uuid;
CREATE INDEX runs_of_schedule ON runs (schedule_id)
    WHERE schedule_id IS NOT NULL AND status IN ('queued', 'running');

-- Fencing numbers: one in Redis would die with a flush.
CREATE TABLE locks (
    name     text PRIMARY KEY,
    fence    bigint NOT NULL CHECK (fence > 0),
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

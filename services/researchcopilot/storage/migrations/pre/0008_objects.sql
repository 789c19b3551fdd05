-- Objects of a cluster (ResearchRun, RunSchedule), and which rows are theirs. Tables of their own:
-- code that is older than they are reads runs and schedules as before.

CREATE TABLE objects (
    uid          uuid PRIMARY KEY,       -- the object's own; of a RunSchedule also its schedule_id
    kind         text NOT NULL CHECK (kind IN ('ResearchRun', 'RunSchedule')),
    cluster      text NOT NULL,          -- where the object is, if several share this database
    namespace    text NOT NULL CHECK (namespace <> ''),
    name         text NOT NULL CHECK (name <> ''),
    workspace_id int NOT NULL,
    generation   bigint NOT NULL DEFAULT 0,   -- the newest that asked for something else, and was
                                              -- acted upon or refused
    asked        text,                   -- what was acted upon, as a hash
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),   -- an operator saw the object
    -- It was deleted. The row stays for a day: whoever hears of the object late makes nothing.
    gone_at      timestamptz
);
CREATE INDEX objects_here ON objects (cluster, kind, namespace) WHERE gone_at IS NULL;
CREATE INDEX objects_gone ON objects (gone_at) WHERE gone_at IS NOT NULL;

-- The primary key is the guarantee that a generation of an object is submitted once, for as long as
-- the object is there: an Idempotency-Key is forgotten after a day, a run after a month.
CREATE TABLE object_runs (
    uid          uuid NOT NULL REFERENCES objects ON DELETE CASCADE,
    generation   bigint NOT NULL CHECK (generation > 0),
    asked        text NOT NULL,          -- what was asked, as a hash
    run_id       uuid NOT NULL UNIQUE,
    PRIMARY KEY (uid, generation)
);

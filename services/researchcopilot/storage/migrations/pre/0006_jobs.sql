-- The jobs that the clock starts, and what they leave behind: digests, memories, reports, stats.

-- Where its days begin and end, by the IANA name; checked by whoever writes it.
ALTER TABLE workspaces ADD COLUMN zone text NOT NULL DEFAULT 'UTC' CHECK (zone <> '');

-- The run that this one was left behind by when it succeeded; NULL for all others. At most one of
-- an agent for a run, for ever: that is what makes a digest come once.
ALTER TABLE runs ADD COLUMN follows uuid;
CREATE UNIQUE INDEX runs_follow ON runs (follows, agent) WHERE follows IS NOT NULL;

-- UNIQUE (run_id, role) holds for it too: one digest of a run, whoever writes it and how often.
ALTER TABLE messages
    DROP CONSTRAINT messages_role_check,
    ADD CONSTRAINT messages_role_check CHECK (role IN ('user', 'assistant', 'digest'));
CREATE INDEX messages_digests ON messages (workspace_id, created_at) WHERE role = 'digest';

-- What a run has concluded, for later ones. It does not reference workspaces: see sessions.
CREATE TABLE memories (
    memory_id    uuid PRIMARY KEY,
    workspace_id int NOT NULL,
    run_id       uuid NOT NULL UNIQUE,      -- whose conclusion it is; that run may be gone by now
    question     text NOT NULL,
    text         text NOT NULL CHECK (text <> ''),   -- a sentence a line, in its own language
    tokens       text[] NOT NULL,           -- what it is found by
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    CONSTRAINT lives_for_a_while CHECK (expires_at > created_at)
);
CREATE INDEX memories_listed ON memories (workspace_id, created_at DESC, memory_id DESC);
CREATE INDEX memories_found ON memories USING gin (tokens);
CREATE INDEX memories_expiry ON memories (expires_at);

-- One for each period, and no moment in two: a period starts where the one before has ended.
CREATE TABLE reports (
    report_id    uuid PRIMARY KEY,
    workspace_id int NOT NULL REFERENCES workspaces,
    run_id       uuid NOT NULL,
    period_start timestamptz NOT NULL,
    period_end   timestamptz NOT NULL,      -- exclusive
    zone         text NOT NULL,
    language     text NOT NULL CHECK (language IN ('zh', 'en')),
    title        text NOT NULL,
    markdown     text NOT NULL,
    data         jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (workspace_id, period_end),
    UNIQUE (workspace_id, period_start),
    CONSTRAINT period_is_some_time CHECK (period_start < period_end)
);

-- What workers have finished, each in rows of its own: part n of a worker is written once, however
-- often it is sent.
CREATE TABLE stats (
    worker_id    uuid NOT NULL,
    part         int NOT NULL,
    workspace_id int NOT NULL,
    agent        text NOT NULL,
    minute       timestamptz NOT NULL,      -- when it was written, by the database's clock
    succeeded    int NOT NULL,
    failed       int NOT NULL,
    cancelled    int NOT NULL,
    retried      int NOT NULL,
    seconds      double precision NOT NULL, -- of all these claims together
    PRIMARY KEY (worker_id, part, workspace_id, agent)
);
CREATE INDEX stats_minute ON stats (workspace_id, minute);
CREATE INDEX stats_age ON stats (minute);

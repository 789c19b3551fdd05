-- The spine: workspaces, sessions, runs and their ledger, workers, agents, keys, documents, index.
--
-- Rules of this file and of those to come: forward only; impossible rows are forbidden by CHECK;
-- workspace_id is in every row; partial indexes keep finished rows out of the hot queries;
-- lease_until is in no index, so that a renewal is a HOT update.

CREATE TABLE workspaces (
    workspace_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO workspaces (name) VALUES ('default');

CREATE TABLE api_keys (
    key_id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    workspace_id int NOT NULL REFERENCES workspaces,
    name         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,   -- SHA-256 of the whole key: keys are random, 256 bits
    hint         text NOT NULL,           -- the first characters, for people
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at   timestamptz
);

-- Written by workers at start, so that the api can refuse an agent or a queue that nobody serves.
CREATE TABLE agents (
    name         text PRIMARY KEY,
    version      text NOT NULL,
    queue        text NOT NULL,
    description  text NOT NULL DEFAULT '',
    input_schema jsonb,
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row for each process start of a worker: a Pod that restarts is another worker.
CREATE TABLE workers (
    worker_id    uuid PRIMARY KEY,
    queues       jsonb NOT NULL,          -- queue → slots
    agents       text[] NOT NULL,
    host         text NOT NULL,
    pid          int NOT NULL,
    version      text NOT NULL,
    pod          text,
    pod_uid      text,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped_at   timestamptz              -- it left by itself, with empty hands
);
CREATE INDEX workers_seen ON workers (seen_at);

-- sessions and runs do not reference workspaces: each insert would lock the one row of its
-- workspace, and concurrent lockers of one row make Postgres write multixacts.
CREATE TABLE sessions (
    session_id   uuid PRIMARY KEY,
    workspace_id int NOT NULL,
    title        text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 90);

CREATE TABLE runs (
    run_id              uuid PRIMARY KEY,
    seq                 bigint GENERATED ALWAYS AS IDENTITY,  -- order within a session
    workspace_id        int NOT NULL,
    session_id          uuid REFERENCES sessions,             -- NULL: upkeep, no conversation
    agent               text NOT NULL,
    queue               text NOT NULL,
    serial              boolean NOT NULL,      -- takes turns with the serial runs of its session
    status              text NOT NULL DEFAULT 'queued'
                        CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    parked              boolean NOT NULL DEFAULT false,       -- waits for its session's turn
    run_at              timestamptz NOT NULL,  -- not before
    ready_at            timestamptz NOT NULL,  -- when it belongs at the tail of its queue
    hinted_at           timestamptz,           -- when it was last pushed to the head
    deadline            timestamptz NOT NULL,
    claim_no            int NOT NULL DEFAULT 0,    -- only grows: the fence
    attempts            int NOT NULL DEFAULT 0,    -- what max_attempts counts
    max_attempts        int NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),
    losses              int NOT NULL DEFAULT 0,    -- claims that ended with the worker's death
    claim_id            uuid,                  -- made by the worker: the same claim sent twice
    worker_id           uuid,
    lease_until         timestamptz,
    timeout_s           double precision CHECK (timeout_s > 0),
    index_version       int,                   -- pinned at first use
    unique_key          text,                  -- at most one unclaimed run of this key
    replay_of           uuid,
    resolved_by         uuid,
    cancel_requested_at timestamptz,           -- sticky
    input               jsonb NOT NULL,
    metadata            jsonb NOT NULL DEFAULT '{}',
    result              jsonb,
    error               jsonb,                 -- {"type", "message", …}: why it failed, for a person
    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz,

    CONSTRAINT running_has_a_lease CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT running_has_a_worker CHECK ((status = 'running') = (worker_id IS NOT NULL)),
    CONSTRAINT terminal_is_finished CHECK
        ((status IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT success_has_a_result CHECK ((status = 'succeeded') = (result IS NOT NULL)),
    CONSTRAINT failure_has_a_reason CHECK (status <> 'failed' OR error IS NOT NULL),
    CONSTRAINT parked_is_queued CHECK (NOT parked OR (status = 'queued' AND serial)),
    CONSTRAINT serial_has_a_session CHECK (NOT serial OR session_id IS NOT NULL),
    CONSTRAINT claims_count CHECK
        (claim_no >= 0 AND attempts BETWEEN 0 AND claim_no AND losses BETWEEN 0 AND claim_no),
    CONSTRAINT running_was_claimed CHECK (status <> 'running' OR claim_no > 0)
) WITH (fillfactor = 85);

-- The guarantee that at most one serial run of a session has its turn.
CREATE UNIQUE INDEX runs_turn ON runs (session_id)
    WHERE serial AND claim_no > 0 AND status IN ('queued', 'running');
CREATE INDEX runs_line ON runs (session_id, seq)
    WHERE serial AND status = 'queued' AND claim_no = 0;
CREATE INDEX runs_ready ON runs (queue, workspace_id, ready_at)
    WHERE status = 'queued' AND NOT parked;
CREATE INDEX runs_running ON runs (run_id) WHERE status = 'running';
CREATE INDEX runs_deadline ON runs (deadline) WHERE status = 'queued';
CREATE INDEX runs_listed ON runs (workspace_id, created_at DESC, run_id DESC);
CREATE INDEX runs_of_session ON runs (session_id, created_at DESC, run_id DESC);
-- Which index versions live runs read: they must not be pruned.
CREATE INDEX runs_pinned ON runs (workspace_id, index_version)
    WHERE index_version IS NOT NULL AND status IN ('queued', 'running');
CREATE UNIQUE INDEX runs_unique_key ON runs (workspace_id, unique_key)
    WHERE unique_key IS NOT NULL AND status = 'queued' AND claim_no = 0;

-- The ledger: one row for each execution by a worker, kept whatever comes of it.
CREATE TABLE claims (
    run_id       uuid NOT NULL,
    claim_no     int NOT NULL,
    workspace_id int NOT NULL,
    worker_id    uuid NOT NULL,
    claim_id     uuid NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    outcome      text CHECK (outcome IN
                 ('succeeded', 'failed', 'cancelled', 'retry', 'release', 'lost')),
    by_worker    boolean NOT NULL DEFAULT false,   -- closed by the worker itself, not by a janitor
    error        jsonb,
    PRIMARY KEY (run_id, claim_no),
    CONSTRAINT closed_has_an_outcome CHECK ((outcome IS NULL) = (finished_at IS NULL))
);

CREATE TABLE steps (
    run_id       uuid NOT NULL,
    name         text NOT NULL,
    claim_no     int NOT NULL,
    workspace_id int NOT NULL,
    value        jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, name)
);

CREATE TABLE messages (
    message_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id int NOT NULL,
    session_id   uuid NOT NULL REFERENCES sessions,
    run_id       uuid NOT NULL,
    role         text NOT NULL CHECK (role IN ('user', 'assistant')),
    payload      jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (run_id, role)
);
CREATE INDEX messages_of_session ON messages (session_id, message_id);

CREATE TABLE idempotency_keys (
    workspace_id int NOT NULL,
    route        text NOT NULL,
    key          text NOT NULL,
    body_hash    text NOT NULL,
    run_ids      uuid[] NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (workspace_id, route, key)
);

-- Which Redis was last seen and fully rebuilt: any difference means that it was wiped or replaced.
CREATE TABLE redis_identity (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch        text NOT NULL,
    replid       text NOT NULL,
    redis_run_id text NOT NULL,
    beat         bigint NOT NULL DEFAULT 0,
    rebuilt_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The last good sweep of each duty: a janitor that was away waits a lease before it reclaims.
CREATE TABLE duties (
    name         text PRIMARY KEY,
    last_success timestamptz NOT NULL
);

CREATE TABLE documents (
    document_id  uuid PRIMARY KEY,
    workspace_id int NOT NULL REFERENCES workspaces,
    name         text NOT NULL,           -- the path or file name; a new text of one name replaces
    title        text NOT NULL,
    media_type   text NOT NULL CHECK (media_type IN ('text/markdown', 'text/plain')),
    sha256       text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    body         text NOT NULL CHECK (body <> ''),
    bytes        int NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at   timestamptz              -- replaced; kept while an answer cites it
);
CREATE UNIQUE INDEX documents_name ON documents (workspace_id, name) WHERE retired_at IS NULL;
CREATE UNIQUE INDEX documents_text ON documents (workspace_id, sha256) WHERE retired_at IS NULL;

CREATE TABLE index_versions (
    workspace_id int NOT NULL REFERENCES workspaces,
    version      int NOT NULL CHECK (version > 0),
    format       int NOT NULL,            -- of tokens and fields: another one is built anew
    document_ids uuid[] NOT NULL,         -- sorted
    chunks       int NOT NULL CHECK (chunks >= 0),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (workspace_id, version)
);

-- Pieces of index files, named by their content, 8 MB at most. Workspaces share them.
CREATE TABLE index_blobs (
    sha256       text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    data         bytea NOT NULL CHECK (octet_length(data) BETWEEN 1 AND 8388608),
    touched_at   timestamptz NOT NULL DEFAULT clock_timestamp()   -- a builder wanted it last
);
ALTER TABLE index_blobs ALTER COLUMN data SET STORAGE EXTERNAL;   -- compressed by the index already

-- The files of a version, in pieces. The reference to index_blobs is the guarantee that no blob
-- is deleted while a version names it, also a version that is being published at that moment.
CREATE TABLE index_files (
    workspace_id int NOT NULL,
    version      int NOT NULL,
    name         text NOT NULL,
    part         int NOT NULL CHECK (part >= 0),
    sha256       text NOT NULL REFERENCES index_blobs,
    PRIMARY KEY (workspace_id, version, name, part),
    FOREIGN KEY (workspace_id, version) REFERENCES index_versions ON DELETE CASCADE
);
CREATE INDEX index_files_blob ON index_files (sha256);

-- Dead letters: failed runs that nobody has dealt with, grouped by what went wrong.

ALTER TABLE runs
    ADD COLUMN discarded_at timestamptz,
    -- One word for one kind of failure: agent, error type, and its message without numbers and ids.
    ADD COLUMN fingerprint text GENERATED ALWAYS AS (
        CASE WHEN status = 'failed' THEN left(md5(
            agent || E'\x1f' || coalesce(error ->> 'type', '') || E'\x1f' || regexp_replace(
                left(coalesce(error ->> 'message', ''), 500),
                '[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|[0-9]+', '#', 'g')), 16) END) STORED,
    ADD CONSTRAINT only_the_failed_are_dealt_with CHECK
        (status = 'failed' OR (resolved_by IS NULL AND discarded_at IS NULL));

CREATE INDEX runs_dead ON runs (workspace_id, fingerprint, finished_at)
    WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL;
-- What retention looks for; finished_at is NULL while a run lives.
CREATE INDEX runs_finished ON runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

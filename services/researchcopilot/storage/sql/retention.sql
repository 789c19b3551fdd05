-- Small batches, oldest first; SKIP LOCKED, since what somebody touches now can wait.

-- name: runs
-- Ended long ago; a dead letter nobody has dealt with is kept longer. With all that hangs on them.
WITH old AS MATERIALIZED (
    SELECT run_id FROM runs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(runs_s)s)
      AND (status <> 'failed' OR resolved_by IS NOT NULL OR discarded_at IS NOT NULL
           OR finished_at < statement_timestamp() - make_interval(secs => %(dead_s)s))
    ORDER BY finished_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), m AS (DELETE FROM messages USING old WHERE messages.run_id = old.run_id),
   s AS (DELETE FROM steps USING old WHERE steps.run_id = old.run_id),
   c AS (DELETE FROM claims USING old WHERE claims.run_id = old.run_id)
DELETE FROM runs USING old WHERE runs.run_id = old.run_id

-- name: sessions
-- Empty and untouched for as long as runs are kept. A submit that comes at the same moment finds its
-- session gone and makes it again.
-- A page by keyset: an index on updated_at would make each submit write it, and without one, old
-- sessions that still have runs would all be looked at each time (a million: 6 s). `last` is NULL
-- after the last page.
WITH page AS MATERIALIZED (
    SELECT session_id, updated_at FROM sessions WHERE session_id > %(after)s::uuid
    ORDER BY session_id LIMIT %(limit)s
), gone AS (
    DELETE FROM sessions WHERE session_id IN (
        SELECT s.session_id FROM sessions s
        WHERE s.session_id IN (
            SELECT p.session_id FROM page p
            WHERE p.updated_at < statement_timestamp() - make_interval(secs => %(runs_s)s))
          AND s.updated_at < statement_timestamp() - make_interval(secs => %(runs_s)s)
          AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.session_id)
          AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.session_id)
        FOR UPDATE OF s SKIP LOCKED)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS removed,
       (SELECT session_id FROM page ORDER BY session_id DESC LIMIT 1) AS last

-- name: keys
DELETE FROM idempotency_keys WHERE (workspace_id, route, key) IN (
    SELECT workspace_id, route, key FROM idempotency_keys
    WHERE created_at < statement_timestamp() - make_interval(secs => %(keys_s)s)
    ORDER BY created_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)

-- name: stats
DELETE FROM stats WHERE (worker_id, part, workspace_id, agent) IN (
    SELECT worker_id, part, workspace_id, agent FROM stats
    WHERE minute < statement_timestamp() - make_interval(secs => %(runs_s)s)
    ORDER BY minute LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)

-- name: ticks
-- As long as runs are kept. A tick that is gone cannot fire again: next ticks only go forward.
DELETE FROM ticks WHERE (schedule_id, tick) IN (
    SELECT schedule_id, tick FROM ticks
    WHERE fired_at < statement_timestamp() - make_interval(secs => %(runs_s)s)
    ORDER BY fired_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)

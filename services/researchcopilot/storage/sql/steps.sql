-- name: read
SELECT name, value FROM steps WHERE run_id = %(run_id)s

-- name: record
-- The value that is kept: ours, or the one that stood there before. No row: not in charge any more.
-- DO UPDATE, although it changes nothing, because only that gives back a row which somebody else
-- has committed since this statement began.
WITH mine AS MATERIALIZED (
    SELECT run_id, workspace_id FROM runs
    WHERE run_id = %(run_id)s AND claim_no = %(claim_no)s AND worker_id = %(worker_id)s
      AND status = 'running'
    FOR SHARE
)
INSERT INTO steps (run_id, name, claim_no, workspace_id, value)
SELECT run_id, %(name)s, %(claim_no)s, workspace_id, %(value)s::jsonb FROM mine
ON CONFLICT (run_id, name) DO UPDATE SET value = steps.value
RETURNING value

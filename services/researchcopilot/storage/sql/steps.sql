-- name: read
SELECT name, value FROM steps WHERE run_id = %(run_id)s

-- name: record
-- `kept` is the value that stood there before, null if ours is the first. Sent twice, the second
-- sending finds the first one's value.
WITH mine AS MATERIALIZED (
    SELECT run_id, workspace_id FROM runs
    WHERE run_id = %(run_id)s AND claim_no = %(claim_no)s AND worker_id = %(worker_id)s
      AND status = 'running'
    FOR SHARE
), added AS (
    INSERT INTO steps (run_id, name, claim_no, workspace_id, value)
    SELECT run_id, %(name)s, %(claim_no)s, workspace_id, %(value)s::jsonb FROM mine
    ON CONFLICT DO NOTHING
    RETURNING name
)
SELECT EXISTS (SELECT 1 FROM mine) AS in_charge,
       (SELECT value FROM steps WHERE run_id = %(run_id)s AND name = %(name)s) AS kept

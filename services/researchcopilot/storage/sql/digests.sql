-- name: read
SELECT r.run_id, r.session_id, r.agent, r.status, r.input, r.result, r.attempts,
       c.claims, s.steps, s.passages, c.executed_s,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.created_at)::float8
           AS seconds
FROM runs r
CROSS JOIN LATERAL (
    SELECT count(*)::int AS claims,
           coalesce(sum(extract(epoch FROM finished_at - started_at)), 0)::float8 AS executed_s
    FROM claims WHERE claims.run_id = r.run_id
) c
CROSS JOIN LATERAL (
    SELECT count(*)::int AS steps,
           coalesce(sum(CASE WHEN jsonb_typeof(value -> 'passages') = 'array'
                             THEN jsonb_array_length(value -> 'passages') END), 0)::int AS passages
    FROM steps WHERE steps.run_id = r.run_id
) s
WHERE r.run_id = %(run_id)s::uuid AND r.workspace_id = %(workspace_id)s

-- name: write
-- FOR KEY SHARE: retention cannot take the run away while its message is being added.
INSERT INTO messages (workspace_id, session_id, run_id, role, payload)
SELECT r.workspace_id, r.session_id, r.run_id, 'digest', %(payload)s::jsonb
FROM runs r
WHERE r.run_id = %(run_id)s::uuid AND r.workspace_id = %(workspace_id)s
  AND r.session_id IS NOT NULL AND r.status = 'succeeded'
FOR KEY SHARE
ON CONFLICT DO NOTHING

-- Dead letters: failed, neither resolved by a replay nor discarded. Every filter may be NULL.

-- name: groups
SELECT fingerprint, agent, error ->> 'type' AS error_type,
       (array_agg(error ->> 'message' ORDER BY finished_at DESC))[1] AS message,
       count(*) AS count, min(finished_at) AS first_failed_at, max(finished_at) AS last_failed_at,
       (array_agg(run_id ORDER BY finished_at DESC))[1:5] AS run_ids
FROM runs
WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL
  AND workspace_id = %(workspace_id)s
  AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s)
  AND (%(agent)s::text IS NULL OR agent = %(agent)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(error_type)s::text IS NULL OR error ->> 'type' = %(error_type)s)
  AND (%(failed_after)s::timestamptz IS NULL OR finished_at >= %(failed_after)s)
  AND (%(failed_before)s::timestamptz IS NULL OR finished_at < %(failed_before)s)
GROUP BY fingerprint, agent, error ->> 'type'
ORDER BY count(*) DESC, max(finished_at) DESC, fingerprint
LIMIT %(limit)s

-- name: ids
-- Oldest first: a replay by filter goes on in the order in which they failed.
SELECT run_id FROM runs
WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL
  AND workspace_id = %(workspace_id)s
  AND (%(fingerprint)s::text IS NULL OR fingerprint = %(fingerprint)s)
  AND (%(agent)s::text IS NULL OR agent = %(agent)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(error_type)s::text IS NULL OR error ->> 'type' = %(error_type)s)
  AND (%(failed_after)s::timestamptz IS NULL OR finished_at >= %(failed_after)s)
  AND (%(failed_before)s::timestamptz IS NULL OR finished_at < %(failed_before)s)
ORDER BY finished_at, run_id
LIMIT %(limit)s

-- name: count
SELECT count(*) AS count FROM runs
WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL
  AND workspace_id = %(workspace_id)s

-- name: discard
-- Sent twice, the second finds nothing left to do; a replay in between keeps its run.
UPDATE runs SET discarded_at = clock_timestamp()
WHERE run_id IN (
    SELECT run_id FROM runs
    WHERE run_id = ANY (%(run_ids)s::uuid[]) AND workspace_id = %(workspace_id)s
      AND status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL
    ORDER BY run_id FOR NO KEY UPDATE)
RETURNING run_id

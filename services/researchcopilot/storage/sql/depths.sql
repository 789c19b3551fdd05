-- name: oldest
-- How long the oldest run of each queue has been ready, below zero if it is not due yet. A loose
-- index scan: one step for each (queue, workspace) that has anything, whatever stands behind it.
WITH RECURSIVE head AS (
    (SELECT queue, workspace_id, ready_at FROM runs
     WHERE status = 'queued' AND NOT parked
     ORDER BY queue, workspace_id, ready_at LIMIT 1)
    UNION ALL
    SELECT n.queue, n.workspace_id, n.ready_at
    FROM head h CROSS JOIN LATERAL (
        SELECT queue, workspace_id, ready_at FROM runs
        WHERE status = 'queued' AND NOT parked
          AND (queue, workspace_id) > (h.queue, h.workspace_id)
        ORDER BY queue, workspace_id, ready_at LIMIT 1
    ) n
)
SELECT queue, extract(epoch FROM clock_timestamp() - min(ready_at))::float8 AS age_s
FROM head GROUP BY queue

-- name: running
SELECT queue, count(*) FROM runs WHERE status = 'running' GROUP BY queue

-- name: workers
-- Live workers and their slots, by queue.
SELECT q.key AS queue, count(*), sum(q.value::int)
FROM workers w CROSS JOIN LATERAL jsonb_each_text(w.queues) q
WHERE w.stopped_at IS NULL
  AND w.seen_at > statement_timestamp() - make_interval(secs => %(stale_s)s)
GROUP BY q.key

-- name: dead_letters
-- Counted up to a hundred thousand: beyond that the exact number helps nobody.
SELECT count(*) FROM (
    SELECT 1 FROM runs
    WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL LIMIT 100000
) AS counted

-- name: indexes
-- The newest version of each workspace and its age; the first hundred workspaces.
SELECT w.name, v.version, extract(epoch FROM clock_timestamp() - v.created_at)::float8 AS age_s
FROM (SELECT workspace_id, name FROM workspaces ORDER BY workspace_id LIMIT 100) w
CROSS JOIN LATERAL (
    SELECT version, created_at FROM index_versions i
    WHERE i.workspace_id = w.workspace_id ORDER BY version DESC LIMIT 1
) v

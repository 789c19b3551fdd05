-- name: register
INSERT INTO workers (worker_id, queues, agents, host, pid, version, pod, pod_uid)
VALUES (%(worker_id)s, %(queues)s::jsonb, %(agents)s, %(host)s, %(pid)s, %(version)s, %(pod)s,
        %(pod_uid)s)
ON CONFLICT (worker_id) DO UPDATE SET seen_at = clock_timestamp(), stopped_at = NULL

-- name: register_agents
-- Sorted by the caller: two workers that start at once lock in one order.
INSERT INTO agents (name, version, queue, description, input_schema, max_attempts)
SELECT a.name, a.version, a.queue, a.description, a.input_schema, a.max_attempts
FROM jsonb_to_recordset(%(agents)s::jsonb)
     AS a(name text, version text, queue text, description text, input_schema jsonb,
          max_attempts int)
ORDER BY a.name
ON CONFLICT (name) DO UPDATE SET version = excluded.version, queue = excluded.queue,
    description = excluded.description, input_schema = excluded.input_schema,
    max_attempts = excluded.max_attempts, seen_at = clock_timestamp()

-- name: beat
UPDATE workers SET seen_at = clock_timestamp() WHERE worker_id = %(worker_id)s RETURNING worker_id

-- name: stop
UPDATE workers SET stopped_at = clock_timestamp(), seen_at = clock_timestamp()
WHERE worker_id = %(worker_id)s

-- name: agents
SELECT name, version, queue, description, input_schema, max_attempts FROM agents ORDER BY name

-- name: queues
SELECT queue FROM agents
UNION SELECT jsonb_object_keys(queues) FROM workers WHERE seen_at > statement_timestamp() - interval '1 day'

-- name: dead
-- Workers that left or were not seen for so long: what their lists hold is moved by verdict.
SELECT worker_id, array(SELECT jsonb_object_keys(queues)) AS queues
FROM workers
WHERE (stopped_at IS NOT NULL OR seen_at < statement_timestamp() - make_interval(secs => %(stale_s)s))
ORDER BY seen_at DESC LIMIT 1000

-- name: prune
-- A worker that still holds a run is kept: its row says who it was.
DELETE FROM workers w
WHERE w.seen_at < statement_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.status = 'running' AND r.worker_id = w.worker_id)

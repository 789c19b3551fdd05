-- name: register
INSERT INTO workers (worker_id, queues, agents, host, pid, version, pod, pod_uid, pod_namespace,
                     process_started_at)
VALUES (%(worker_id)s, %(queues)s::jsonb, %(agents)s, %(host)s, %(pid)s, %(version)s, %(pod)s,
        %(pod_uid)s, %(pod_namespace)s, %(process_started_at)s)
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

-- name: known
-- Which of these, whatever they look like, are workers that have a row.
SELECT worker_id FROM workers WHERE worker_id::text = ANY (%(worker_ids)s::text[])

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

-- name: dead_in_pods
-- Processes of these Pods that are dead, if what is said of the Pod is right: all of them, or, where
-- another container runs there now, those that started before it. Where it is not sure (sure is
-- false, or the worker's row is of a version that did not tell its start), the worker must have
-- missed a renewal too. Those that hold nothing any more and were cleared long ago are left out.
-- `place`: the first that says so of a worker, counted from 1.
SELECT DISTINCT ON (w.worker_id) w.worker_id, p.place,
       array(SELECT jsonb_object_keys(w.queues)) AS queues
FROM unnest(%(pod_uids)s::text[], %(befores)s::timestamptz[], %(sures)s::boolean[])
     WITH ORDINALITY AS p(pod_uid, before, sure, place)
JOIN workers w USING (pod_uid)
WHERE (p.before IS NULL OR coalesce(w.process_started_at < p.before, true))
  AND (p.sure AND (p.before IS NULL OR w.process_started_at IS NOT NULL)
       OR w.seen_at < clock_timestamp() - make_interval(secs => %(silent_s)s))
  AND (w.stopped_at IS NULL AND w.seen_at > clock_timestamp() - make_interval(secs => %(cleared_s)s)
       OR EXISTS (SELECT 1 FROM runs r WHERE r.status = 'running' AND r.worker_id = w.worker_id))
ORDER BY w.worker_id, p.place

-- name: silent_in_pods
-- Who holds runs and has missed a renewal: Pods that the cluster is to be asked about.
SELECT DISTINCT w.pod_uid, w.pod FROM workers w
WHERE w.pod_namespace = %(namespace)s AND w.pod_uid IS NOT NULL AND w.pod IS NOT NULL
  AND w.seen_at < clock_timestamp() - make_interval(secs => %(silent_s)s)
  AND EXISTS (SELECT 1 FROM runs r WHERE r.status = 'running' AND r.worker_id = w.worker_id)
ORDER BY w.pod_uid LIMIT %(limit)s

-- name: busy_in_pods
-- For how long the longest of the runs of each Pod goes on; Pods without any are left out.
SELECT w.pod_uid, extract(epoch FROM clock_timestamp() - min(c.started_at))::float8 AS longest_s
FROM runs r
JOIN workers w USING (worker_id)
JOIN claims c ON c.run_id = r.run_id AND c.claim_no = r.claim_no
WHERE r.status = 'running' AND w.pod_uid = ANY (%(pod_uids)s::text[])
GROUP BY w.pod_uid

-- name: prune
-- A worker that still holds a run is kept: its row says who it was.
DELETE FROM workers w
WHERE w.seen_at < statement_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.status = 'running' AND r.worker_id = w.worker_id)

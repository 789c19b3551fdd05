-- name: submit   nothing -> queued, for an object
SELECT verdict, run_ids, held, created_at, run_at
FROM submit_object_1(%(object)s::jsonb, %(quota)s::int, %(members)s::jsonb, %(runs)s::jsonb)

-- name: standing
-- The newest run of each of these objects, as it stands. The worker is that of its newest claim: a
-- run that has ended names none any more. Of an answer the beginning, of an error all but its
-- trace: both can be large.
SELECT DISTINCT ON (x.uid) x.uid, x.generation, o.generation AS acted_on, x.asked, x.run_id,
       r.status, r.session_id, r.attempts, r.created_at, r.started_at, r.finished_at, r.parked,
       r.cancel_requested_at IS NOT NULL AS cancelling, coalesce(w.pod, w.host) AS worker,
       r.error ->> 'type' AS error_type, left(r.error ->> 'message', 2000) AS error_message,
       CASE WHEN r.status = 'succeeded' THEN
           left(coalesce(r.result ->> 'answer', r.result #>> '{}'), %(excerpt)s::int) END AS answer
FROM object_runs x JOIN objects o USING (uid)
LEFT JOIN runs r USING (run_id)
LEFT JOIN claims c ON c.run_id = r.run_id AND c.claim_no = r.claim_no
LEFT JOIN workers w ON w.worker_id = c.worker_id
WHERE x.uid = ANY (%(uids)s::uuid[])
ORDER BY x.uid, x.generation DESC

-- name: enter
-- Before anything is made for it, so that nothing is ever without its object.
INSERT INTO objects (uid, kind, cluster, namespace, name, workspace_id)
VALUES (%(uid)s::uuid, %(kind)s, %(cluster)s, %(namespace)s, %(name)s, %(workspace_id)s)
ON CONFLICT DO NOTHING

-- name: lock
SELECT workspace_id, generation, asked, gone_at FROM objects
WHERE uid = %(uid)s::uuid FOR NO KEY UPDATE

-- name: asked
UPDATE objects SET generation = greatest(generation, %(generation)s), asked = %(asked)s
WHERE uid = %(uid)s::uuid AND gone_at IS NULL

-- name: refused
-- A generation that asks for what nobody gives: the run of the one before is not wanted any more.
UPDATE objects SET generation = greatest(generation, %(generation)s) WHERE uid = %(uid)s::uuid

-- name: seen
UPDATE objects SET seen_at = clock_timestamp() WHERE uid = ANY (%(uids)s::uuid[])

-- name: gone
UPDATE objects SET gone_at = clock_timestamp()
WHERE uid = ANY (%(uids)s::uuid[]) AND gone_at IS NULL

-- name: vanished
-- Of a list that is whole, and that was asked for after `before`: what is not on it is gone.
UPDATE objects SET gone_at = clock_timestamp()
WHERE cluster = %(cluster)s AND kind = %(kind)s AND gone_at IS NULL
  AND created_at < %(before)s::timestamptz
  AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
  AND uid <> ALL (%(uids)s::uuid[])

-- name: unwanted
-- Runs that go on although their object is gone, or asks for something else by now.
SELECT o.workspace_id, r.run_id
FROM objects o JOIN object_runs x USING (uid) JOIN runs r USING (run_id)
WHERE o.cluster = %(cluster)s AND o.kind = 'ResearchRun'
  AND (o.gone_at IS NOT NULL OR x.generation < o.generation)
  AND r.status IN ('queued', 'running') AND r.cancel_requested_at IS NULL
ORDER BY o.workspace_id, r.run_id LIMIT %(limit)s

-- name: orphans
-- Schedules whose object is gone, with their ticks; their runs stay.
DELETE FROM schedules s USING objects o
WHERE o.uid = s.schedule_id AND o.cluster = %(cluster)s AND o.kind = 'RunSchedule'
  AND o.gone_at IS NOT NULL

-- name: forget
DELETE FROM objects
WHERE gone_at < statement_timestamp() - interval '1 day' AND cluster = %(cluster)s

-- name: owner
-- Who owns this schedule, and has said so lately: an operator that was taken away owns nothing.
SELECT namespace, name FROM objects
WHERE uid = %(schedule_id)s::uuid AND kind = 'RunSchedule' AND gone_at IS NULL
  AND seen_at > clock_timestamp() - make_interval(secs => %(holds_s)s)

-- name: schedules
-- What was acted upon for these objects, and the rows that are theirs.
SELECT o.uid AS of_object, o.generation AS acted_on, o.asked, s.*
FROM objects o LEFT JOIN schedules s ON s.schedule_id = o.uid
WHERE o.uid = ANY (%(uids)s::uuid[]) AND o.gone_at IS NULL

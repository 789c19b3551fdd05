-- name: get
SELECT run_id, workspace_id, session_id, agent, queue, status, parked, input, metadata, result,
       error, claim_no, attempts, max_attempts, losses, timeout_s, worker_id, index_version,
       schedule_id, follows, replay_of, resolved_by, run_at, deadline, created_at, started_at,
       finished_at, cancel_requested_at
FROM runs WHERE run_id = %(run_id)s::uuid AND workspace_id = %(workspace_id)s

-- name: get_each
-- Each by its own workspace: callers of several may share a group, never a row.
SELECT i.place, r.run_id, r.workspace_id, r.session_id, r.agent, r.queue, r.status, r.parked,
       r.input, r.metadata, r.result, r.error, r.claim_no, r.attempts, r.max_attempts, r.losses,
       r.timeout_s, r.worker_id, r.index_version, r.schedule_id, r.follows, r.replay_of,
       r.resolved_by, r.run_at, r.deadline, r.created_at, r.started_at, r.finished_at,
       r.cancel_requested_at
FROM unnest(%(workspace_ids)s::int[], %(run_ids)s::uuid[])
     WITH ORDINALITY AS i(workspace_id, run_id, place)
JOIN runs r ON r.run_id = i.run_id AND r.workspace_id = i.workspace_id

-- name: get_many
SELECT r.run_id, r.workspace_id, r.session_id, r.agent, r.queue, r.status, r.parked,
       NULL AS input, r.metadata, NULL AS result, r.error - 'trace' AS error, r.claim_no,
       r.attempts, r.max_attempts, r.losses, r.timeout_s, r.worker_id, r.index_version,
       r.schedule_id, r.follows, r.replay_of, r.resolved_by, r.run_at, r.deadline, r.created_at,
       r.started_at, r.finished_at, r.cancel_requested_at
FROM unnest(%(run_ids)s::uuid[]) WITH ORDINALITY AS i(run_id, place)
JOIN runs r ON r.run_id = i.run_id AND r.workspace_id = %(workspace_id)s
ORDER BY i.place

-- name: list
-- Planned anew at each call with its values, so an absent filter costs nothing.
SELECT run_id, workspace_id, session_id, agent, queue, status, parked, NULL AS input, metadata,
       NULL AS result, error - 'trace' AS error, claim_no, attempts, max_attempts, losses,
       timeout_s, worker_id, index_version, schedule_id, follows, replay_of, resolved_by, run_at,
       deadline, created_at, started_at, finished_at, cancel_requested_at
FROM runs
WHERE workspace_id = %(workspace_id)s
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(agent)s::text IS NULL OR agent = %(agent)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(session_id)s::uuid IS NULL OR session_id = %(session_id)s::uuid)
  AND (%(created_after)s::timestamptz IS NULL OR created_at > %(created_after)s)
  AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s)
  AND (%(at)s::timestamptz IS NULL
       OR (created_at, run_id) < (%(at)s::timestamptz, %(run_id)s::uuid))
ORDER BY created_at DESC, run_id DESC
LIMIT %(limit)s

-- name: statuses
SELECT run_id, status FROM runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: session_exists
SELECT 1 AS found FROM sessions
WHERE session_id = %(session_id)s::uuid AND workspace_id = %(workspace_id)s

-- name: messages
-- A page ends early once it is heavy: two hundred results of a megabyte each fit into no answer.
SELECT message_id, session_id, run_id, role, payload, created_at
FROM (
    SELECT m.*, sum(m.weight) OVER (ORDER BY m.message_id) - m.weight AS before
    FROM (
        SELECT message_id, session_id, run_id, role, payload, created_at,
               octet_length(payload::text) AS weight
        FROM messages
        WHERE session_id = %(session_id)s::uuid AND workspace_id = %(workspace_id)s
          AND message_id > %(after)s
        ORDER BY message_id
        LIMIT %(limit)s
    ) m
) m
WHERE before < %(bytes)s
ORDER BY message_id

-- name: has_messages_after
SELECT 1 AS found FROM messages
WHERE session_id = %(session_id)s::uuid AND workspace_id = %(workspace_id)s
  AND message_id > %(after)s
LIMIT 1

-- name: accepted_before
SELECT run_ids FROM idempotency_keys
WHERE workspace_id = %(workspace_id)s AND route = %(route)s AND key = %(key)s
  AND body_hash = %(body_hash)s

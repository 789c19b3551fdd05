-- The moves of a run: calls of the functions in migrations/functions, where each is explained.

-- name: submit   nothing -> queued
SELECT member, verdict, run_ids, created_at, run_at, deadline
FROM submit_1(%(members)s::jsonb, %(runs)s::jsonb)

-- name: claim   queued -> running
SELECT run_id, verdict, wait_s, claim_no, workspace_id, session_id, queue, agent, input, metadata,
       attempts, max_attempts, losses, timeout_s, deadline, created_at, ready_at
FROM claim_1(%(run_ids)s::uuid[], %(worker_id)s::uuid, %(claim_id)s::uuid,
             make_interval(secs => %(lease_s)s))

-- name: renew   running stays
SELECT run_id, claim_no, verdict
FROM renew_2(%(worker_id)s::uuid, %(run_ids)s::uuid[], %(claim_nos)s::int[],
             make_interval(secs => %(lease_s)s))

-- name: finish   running -> succeeded, failed, cancelled, queued
SELECT run_id, verdict, workspace_id, queue, wait_s, claim_no
FROM finish_1(%(worker_id)s::uuid, %(run_ids)s::uuid[], %(claim_nos)s::int[], %(kinds)s::text[],
              %(results)s::text[]::jsonb[], %(errors)s::text[]::jsonb[], %(delays)s::float8[],
              %(follow_ups)s::text[]::jsonb[])

-- name: reclaim   running -> queued, failed, cancelled
-- recovery_s: since the last sign of life of its worker. The snapshot of this statement is older than
-- what the function does, so it still shows the run as its worker had it. LIMIT keeps the planner from
-- hashing all runs each time that there is nothing to be taken back.
SELECT m.run_id, m.verdict, m.workspace_id, m.queue, m.reason, m.worker_id,
       extract(epoch FROM clock_timestamp() - CASE m.reason
           WHEN 'left' THEN had.stopped_at
           WHEN 'forgotten' THEN had.lease_until
           ELSE greatest(had.seen_at, had.started_at) END)::float8 AS recovery_s
FROM reclaim_2(%(limit)s::int, %(max_losses)s::int, %(workers)s::uuid[], %(reasons)s::text[],
               %(causes)s::text[])
     WITH ORDINALITY AS m(run_id, verdict, workspace_id, queue, reason, worker_id, place)
LEFT JOIN LATERAL (
    SELECT r.lease_until, c.started_at, w.seen_at, w.stopped_at
    FROM runs r
    JOIN claims c ON c.run_id = r.run_id AND c.claim_no = r.claim_no
    LEFT JOIN workers w ON w.worker_id = r.worker_id
    WHERE r.run_id = m.run_id LIMIT 1
) had ON m.verdict <> 'push'
ORDER BY m.place

-- name: expire   queued -> failed
SELECT run_id, verdict, workspace_id, queue, reason FROM expire_1(%(limit)s::int)

-- name: cancel   queued -> cancelled; running is asked
SELECT run_id, verdict, workspace_id, queue, worker_id, claim_no
FROM cancel_1(%(workspace_id)s::int, %(run_ids)s::uuid[])

-- name: replay   nothing -> queued, from dead letters
SELECT run_id, verdict, new_run_id, queue
FROM replay_1(%(workspace_id)s::int, %(run_ids)s::uuid[], %(new_ids)s::uuid[], %(fresh)s::boolean)

-- name: free   parked stays queued
SELECT run_id, verdict, workspace_id, queue, reason FROM free_1(%(session_ids)s::uuid[])

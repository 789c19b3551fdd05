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
FROM renew_1(%(worker_id)s::uuid, %(run_ids)s::uuid[], %(claim_nos)s::int[],
             make_interval(secs => %(lease_s)s))

-- name: finish   running -> succeeded, failed, cancelled, queued
SELECT run_id, verdict, workspace_id, queue, wait_s, claim_no
FROM finish_1(%(worker_id)s::uuid, %(run_ids)s::uuid[], %(claim_nos)s::int[], %(kinds)s::text[],
              %(results)s::text[]::jsonb[], %(errors)s::text[]::jsonb[], %(delays)s::float8[],
              %(follow_ups)s::text[]::jsonb[])

-- name: reclaim   running -> queued, failed, cancelled
SELECT run_id, verdict, workspace_id, queue, reason, worker_id
FROM reclaim_2(%(limit)s::int, %(max_losses)s::int, %(workers)s::uuid[], %(reasons)s::text[],
               %(causes)s::text[])

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

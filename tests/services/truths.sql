-- What the tables say that metrics have to say: labels, and last the number. pid is a worker's.

-- name: waiting
SELECT queue, count(*) FROM runs
WHERE status = 'queued' AND NOT parked AND run_at <= clock_timestamp() GROUP BY queue

-- name: delayed
SELECT queue, count(*) FROM runs
WHERE status = 'queued' AND NOT parked AND run_at > clock_timestamp() GROUP BY queue

-- name: running
SELECT queue, count(*) FROM runs WHERE status = 'running' GROUP BY queue

-- name: load
SELECT queue, count(*) FROM runs
WHERE status = 'running' OR status = 'queued' AND NOT parked AND run_at <= clock_timestamp()
GROUP BY queue

-- name: oldest
SELECT queue, extract(epoch FROM clock_timestamp() - min(ready_at))::float8 FROM runs
WHERE status = 'queued' AND NOT parked AND ready_at <= clock_timestamp() GROUP BY queue

-- name: next_due
SELECT queue, extract(epoch FROM min(run_at) - clock_timestamp())::float8 FROM runs
WHERE status = 'queued' AND NOT parked AND run_at > clock_timestamp() GROUP BY queue

-- name: busy
SELECT queue, count(*) FROM runs
WHERE status = 'running' AND worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY queue

-- name: dead_letters
SELECT count(*) FROM runs
WHERE status = 'failed' AND resolved_by IS NULL AND discarded_at IS NULL

-- name: without_agent
SELECT agent, count(*) FROM runs
WHERE status = 'queued' AND error ->> 'type' = 'no_agent' GROUP BY agent

-- name: index_version
SELECT DISTINCT ON (workspace_id) name, version
FROM index_versions JOIN workspaces USING (workspace_id) ORDER BY workspace_id, version DESC

-- name: index_age
SELECT DISTINCT ON (workspace_id) name,
       extract(epoch FROM clock_timestamp() - v.created_at)::float8
FROM index_versions v JOIN workspaces USING (workspace_id) ORDER BY workspace_id, version DESC

-- name: next_tick
SELECT extract(epoch FROM min(next_tick) - clock_timestamp())::float8 FROM schedules

-- name: lost_threads
-- A plain function that was told to stop keeps its thread; that of the test sleeps for minutes.
SELECT count(*) FROM claims c JOIN runs r USING (run_id)
WHERE c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
  AND r.agent = 'sleep_in_thread' AND c.error ->> 'type' = 'timed_out'

-- name: submitted
SELECT queue, count(*) FROM runs WHERE schedule_id IS NULL GROUP BY queue

-- name: finished
SELECT r.queue, r.agent, c.outcome, count(*) FROM claims c JOIN runs r USING (run_id)
WHERE c.by_worker AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.queue, r.agent, c.outcome

-- name: retries
SELECT r.agent, CASE c.error ->> 'type' WHEN 'retry_later' THEN 'asked'
           WHEN 'timed_out' THEN 'timed_out' WHEN 'agent_crashed' THEN 'crashed'
           ELSE 'error' END AS reason, count(*)
FROM claims c JOIN runs r USING (run_id)
WHERE c.by_worker AND c.outcome = 'retry'
  AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.agent, reason

-- name: ended
SELECT r.agent, count(*) FROM claims c JOIN runs r USING (run_id)
WHERE c.by_worker AND c.outcome IN ('succeeded', 'failed', 'cancelled')
  AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.agent

-- name: attempts
SELECT r.agent, sum(r.attempts) FROM claims c JOIN runs r USING (run_id)
WHERE c.by_worker AND c.outcome IN ('succeeded', 'failed', 'cancelled')
  AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.agent

-- name: executed
SELECT r.queue, r.agent, count(*) FROM claims c JOIN runs r USING (run_id)
WHERE c.by_worker AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.queue, r.agent

-- name: recovered
SELECT r.queue, count(*) FROM claims c JOIN runs r USING (run_id)
JOIN claims lost ON lost.run_id = c.run_id AND lost.claim_no = c.claim_no - 1
WHERE lost.outcome = 'lost' AND c.worker_id = (SELECT worker_id FROM workers WHERE pid = %(pid)s)
GROUP BY r.queue

-- name: reclaimed
-- The ledger has the reason in words, for people. Nobody was lost for the last time here.
SELECT CASE WHEN error ->> 'message' LIKE '%%without handing%%' THEN 'left'
            WHEN error ->> 'message' LIKE '%%it lives%%' THEN 'forgotten'
            ELSE 'silent' END AS reason, 'queued', count(*)
FROM claims WHERE outcome = 'lost' GROUP BY reason

-- name: lost
SELECT CASE WHEN error ->> 'message' LIKE '%%without handing%%' THEN 'left'
            WHEN error ->> 'message' LIKE '%%it lives%%' THEN 'forgotten'
            ELSE 'silent' END AS reason, count(*)
FROM claims WHERE outcome = 'lost' GROUP BY reason

-- name: ticks
SELECT outcome, count(*) FROM ticks WHERE cause = 'clock' GROUP BY outcome

-- name: objects
SELECT kind, count(*) FROM objects WHERE gone_at IS NULL GROUP BY kind

-- name: judge
-- Where the entries of a dead worker belong.
SELECT run_id, status, parked,
       greatest(extract(epoch FROM run_at - clock_timestamp())::float8, 0) AS wait_s
FROM runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS microseconds

-- name: lost
-- Queued, due, not parked, and older than a probe that was taken: its push was lost. A push to the
-- head may be on its way for as long as these are spread. One workspace at a time, so that the
-- index answers; SKIP LOCKED, since what moves now is not lost.
WITH found AS (
    SELECT r.run_id FROM workspaces w CROSS JOIN LATERAL (
        SELECT r.run_id FROM runs r
        WHERE r.queue = %(queue)s AND r.workspace_id = w.workspace_id
          AND r.status = 'queued' AND NOT r.parked
          AND r.ready_at < to_timestamp(%(before_us)s / 1000000.0)
          AND coalesce(r.hinted_at < to_timestamp(%(hinted_before_us)s / 1000000.0), true)
        ORDER BY r.ready_at, r.seq LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) r LIMIT %(limit)s
)
UPDATE runs r SET hinted_at = clock_timestamp() FROM found
WHERE r.run_id = found.run_id
RETURNING r.run_id, r.workspace_id, r.ready_at, r.seq

-- name: soon
-- Delayed rows that are due within two minutes, by keyset.
SELECT run_id, workspace_id, queue, extract(epoch FROM run_at - clock_timestamp())::float8 AS wait_s
FROM runs
WHERE status = 'queued' AND NOT parked AND queue = %(queue)s
  AND workspace_id = %(workspace_id)s
  AND ready_at > statement_timestamp() AND ready_at < statement_timestamp() + interval '2 minutes'
LIMIT 20000

-- name: workspaces
SELECT workspace_id FROM workspaces ORDER BY workspace_id

-- name: queues
-- Every queue that holds work or is served: a loose index scan, one step for each distinct queue.
WITH RECURSIVE q AS (
    (SELECT queue FROM runs WHERE status = 'queued' AND NOT parked ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM runs r
            WHERE r.status = 'queued' AND NOT r.parked AND r.queue > q.queue
            ORDER BY r.queue LIMIT 1)
    FROM q WHERE q.queue IS NOT NULL
)
SELECT queue FROM q WHERE queue IS NOT NULL
UNION SELECT queue FROM agents
UNION SELECT jsonb_object_keys(queues) FROM workers WHERE seen_at > statement_timestamp() - interval '1 day'

-- name: identity
SELECT epoch, replid, redis_run_id FROM redis_identity

-- name: save_identity
INSERT INTO redis_identity (epoch, replid, redis_run_id)
VALUES (%(epoch)s, %(replid)s, %(redis_run_id)s)
ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch, replid = excluded.replid,
    redis_run_id = excluded.redis_run_id, rebuilt_at = clock_timestamp()

-- name: rebuild_lock
SELECT pg_try_advisory_xact_lock(hashtextextended('researchcopilot.rebuild', 0)) AS mine

-- name: all_queued
-- Those of one commit have the same ready_at; seq is their order.
SELECT queue, workspace_id, run_id, extract(epoch FROM run_at - clock_timestamp())::float8 AS wait_s
FROM runs WHERE status = 'queued' AND NOT parked ORDER BY ready_at, seq

-- name: sweep
-- A sweep begins. If the one before, of whichever janitor, is older than away_s, somebody was away,
-- and all janitors have to know it: the second to come back would see the first one's sweep.
WITH before AS MATERIALIZED (
    SELECT last_success FROM duties WHERE name = %(name)s FOR UPDATE
), gap AS (
    INSERT INTO duties (name, last_success)
    SELECT %(name)s || '.away', clock_timestamp() FROM before
    WHERE last_success < clock_timestamp() - make_interval(secs => %(away_s)s)
    ON CONFLICT (name) DO UPDATE SET last_success = excluded.last_success
    RETURNING name
)
INSERT INTO duties (name, last_success)
SELECT %(name)s, clock_timestamp() FROM (SELECT count(*) FROM gap) looked_before
ON CONFLICT (name) DO UPDATE SET last_success = excluded.last_success

-- name: since_away
-- A statement of its own: only a snapshot after that lock sees what another janitor has noted.
SELECT extract(epoch FROM clock_timestamp() - last_success)::float8 AS since_s
FROM duties WHERE name = %(name)s || '.away'

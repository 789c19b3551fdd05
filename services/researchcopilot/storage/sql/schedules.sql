-- name: now
SELECT clock_timestamp() AS now

-- name: due
-- Without a lock: a plan is made from these rows, and fire_1 looks again under its own.
SELECT clock_timestamp() AS now, s.* FROM schedules s
WHERE next_tick <= statement_timestamp() ORDER BY next_tick, schedule_id LIMIT %(limit)s

-- name: wait
-- Seconds until the next tick of any schedule; negative if it is due; NULL without one.
SELECT extract(epoch FROM min(next_tick) - clock_timestamp())::float8 AS wait_s FROM schedules
WHERE next_tick IS NOT NULL

-- name: fire
SELECT schedule_id, tick, outcome, run_id, workspace_id, queue, wait_s, late_s
FROM fire_1(%(plans)s::jsonb)

-- name: trigger
SELECT verdict, run_id, queue
FROM trigger_1(%(workspace_id)s, %(schedule_id)s::uuid, %(run_id)s::uuid, %(route)s::text,
               %(key)s::text, %(body_hash)s::text)

-- name: insert
INSERT INTO schedules (
    schedule_id, workspace_id, name, system, session_id, agent, queue, input, metadata,
    max_attempts, timeout_s, deadline_s, unique_key, cron, timezone, interval_s, anchor, starts_at,
    ends_at, misfire, overlap, jitter_s, next_tick, created_at, updated_at)
VALUES (
    %(schedule_id)s::uuid, %(workspace_id)s, %(name)s, %(system)s, %(session_id)s::uuid, %(agent)s,
    %(queue)s, %(input)s::text::jsonb, %(metadata)s::text::jsonb, %(max_attempts)s, %(timeout_s)s,
    %(deadline_s)s, %(unique_key)s, %(cron)s, %(timezone)s, %(interval_s)s, %(anchor)s,
    %(starts_at)s, %(ends_at)s, %(misfire)s, %(overlap)s, %(jitter_s)s, %(next_tick)s,
    %(created_at)s, %(updated_at)s)
ON CONFLICT (workspace_id, name) DO NOTHING
RETURNING schedule_id

-- name: lock
SELECT s.*, clock_timestamp() AS now FROM schedules s
WHERE schedule_id = %(schedule_id)s::uuid AND workspace_id = %(workspace_id)s
FOR NO KEY UPDATE

-- name: update
UPDATE schedules SET
    name = %(name)s, agent = %(agent)s, queue = %(queue)s, input = %(input)s::text::jsonb,
    metadata = %(metadata)s::text::jsonb, max_attempts = %(max_attempts)s,
    timeout_s = %(timeout_s)s, deadline_s = %(deadline_s)s, cron = %(cron)s,
    timezone = %(timezone)s, interval_s = %(interval_s)s, anchor = %(anchor)s,
    starts_at = %(starts_at)s, ends_at = %(ends_at)s, misfire = %(misfire)s,
    overlap = %(overlap)s, jitter_s = %(jitter_s)s, paused_at = %(paused_at)s,
    paused_why = %(paused_why)s, next_tick = %(next_tick)s, revision = revision + 1,
    updated_at = clock_timestamp()
WHERE schedule_id = %(schedule_id)s::uuid
RETURNING revision, updated_at

-- name: halt
-- A schedule whose ticks cannot be worked out any more: paused, with the reason.
UPDATE schedules SET paused_at = clock_timestamp(), paused_why = %(why)s, next_tick = NULL,
    revision = revision + 1, updated_at = clock_timestamp()
WHERE schedule_id = %(schedule_id)s::uuid AND revision = %(revision)s AND paused_at IS NULL

-- name: delete
DELETE FROM schedules
WHERE schedule_id = %(schedule_id)s::uuid AND workspace_id = %(workspace_id)s AND NOT system

-- name: get
SELECT * FROM schedules
WHERE schedule_id = %(schedule_id)s::uuid AND workspace_id = %(workspace_id)s

-- name: list
-- Without the inputs, which can be large.
SELECT schedule_id, workspace_id, name, system, session_id, agent, queue, NULL AS input, metadata,
       max_attempts, timeout_s, deadline_s, unique_key, cron, timezone, interval_s, anchor,
       starts_at, ends_at, misfire, overlap, jitter_s, paused_at, paused_why, next_tick, revision,
       created_at, updated_at
FROM schedules
WHERE workspace_id = %(workspace_id)s AND (%(after)s::text IS NULL OR name > %(after)s)
ORDER BY name LIMIT %(limit)s

-- name: last_ticks
-- The newest tick of each that was more than missed, with its run as it stands.
SELECT x.schedule_id, x.tick, x.cause, x.outcome, x.until, x.run_id, x.fired_at, r.status,
       r.started_at, r.finished_at,
       CASE WHEN r.status = 'failed' THEN left(r.error ->> 'message', 500) END AS error
FROM unnest(%(schedule_ids)s::uuid[]) AS i(schedule_id)
CROSS JOIN LATERAL (
    SELECT * FROM ticks t WHERE t.schedule_id = i.schedule_id AND t.run_id IS NOT NULL
    ORDER BY t.tick DESC LIMIT 1
) x LEFT JOIN runs r ON r.run_id = x.run_id

-- name: ticks
SELECT x.schedule_id, x.tick, x.cause, x.outcome, x.until, x.run_id, x.fired_at, r.status,
       r.started_at, r.finished_at,
       CASE WHEN r.status = 'failed' THEN left(r.error ->> 'message', 500) END AS error
FROM ticks x LEFT JOIN runs r ON r.run_id = x.run_id
WHERE x.schedule_id = %(schedule_id)s::uuid AND x.workspace_id = %(workspace_id)s
  AND (%(before)s::timestamptz IS NULL OR x.tick < %(before)s)
ORDER BY x.tick DESC LIMIT %(limit)s

-- name: lacking
-- Workspaces that have no schedule of these names yet; a person cannot take such a name.
SELECT w.workspace_id, n.name, w.zone
FROM workspaces w CROSS JOIN unnest(%(names)s::text[]) AS n(name)
WHERE NOT EXISTS (SELECT 1 FROM schedules s
                  WHERE s.workspace_id = w.workspace_id AND s.name = n.name AND s.system)
ORDER BY w.workspace_id, n.name LIMIT %(limit)s

-- fire_1: deal with the due ticks of schedules, as planned: nothing → queued, for those that fire.
--
-- p_plans: [{schedule_id, revision, expected, next_tick,
--            ticks: [{tick, run_id, jitter_s, until}]}], run_id null for a tick that was missed.
-- A plan holds while its schedule has the revision and the next_tick (`expected`) that it was made
-- from; else it does nothing, and so does a second sending. SKIP LOCKED: whoever has the row deals
-- with it. Time is read after the locks; a plan with a tick that is not due does nothing at all.
-- The primary key of ticks holds also when all of that fails.
-- Returns what became of each tick: fired (queue and wait_s: to be pushed), merged, overlap, missed.
-- A second sending returns what the first one fired, so that it is pushed after all.
CREATE OR REPLACE FUNCTION fire_1(p_plans jsonb)
RETURNS TABLE (schedule_id uuid, tick timestamptz, outcome text, run_id uuid, workspace_id int,
               queue text, wait_s double precision, late_s double precision)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t timestamptz;
    v_mine uuid[];
BEGIN
    v_mine := ARRAY(
        SELECT s.schedule_id FROM schedules s
        JOIN jsonb_to_recordset(p_plans)
             AS p(schedule_id uuid, revision int, expected timestamptz) USING (schedule_id)
        WHERE s.next_tick = p.expected AND s.revision = p.revision
        ORDER BY s.schedule_id FOR NO KEY UPDATE OF s SKIP LOCKED);

    t := clock_timestamp();

    v_mine := ARRAY(
        SELECT p.schedule_id
        FROM jsonb_to_recordset(p_plans)
             AS p(schedule_id uuid, expected timestamptz, next_tick timestamptz, ticks jsonb)
        WHERE p.schedule_id = ANY (v_mine) AND coalesce(p.next_tick > p.expected, true)
          AND NOT EXISTS (SELECT 1 FROM jsonb_to_recordset(p.ticks) AS k(tick timestamptz)
                          WHERE k.tick > t));

    WITH planned AS MATERIALIZED (
        SELECT s.*, k.tick, k.run_id, k.until,
               k.tick + make_interval(secs => coalesce(k.jitter_s, 0)) AS run_at,
               coalesce(s.queue, a.queue, 'runs') AS to_queue,
               coalesce(s.max_attempts, a.max_attempts, 3) AS attempts,
               CASE WHEN k.run_id IS NULL THEN 'missed'
                    WHEN s.overlap = 'skip' AND busy.run_id IS NOT NULL THEN 'overlap'
                    ELSE 'fired' END AS outcome
        FROM jsonb_to_recordset(p_plans) AS p(schedule_id uuid, ticks jsonb)
        JOIN schedules s USING (schedule_id)
        CROSS JOIN LATERAL jsonb_to_recordset(p.ticks)
             AS k(tick timestamptz, run_id uuid, jitter_s double precision, until timestamptz)
        LEFT JOIN agents a ON a.name = s.agent
        LEFT JOIN LATERAL (
            SELECT r.run_id FROM runs r WHERE r.schedule_id = s.schedule_id
              AND r.schedule_id IS NOT NULL AND r.status IN ('queued', 'running') LIMIT 1
        ) busy ON true
        WHERE p.schedule_id = ANY (v_mine)
    ), dealt AS (
        INSERT INTO ticks AS x (schedule_id, tick, workspace_id, cause, outcome, until, run_id,
                                fired_at)
        SELECT p.schedule_id, p.tick, p.workspace_id, 'clock', p.outcome, p.until,
               CASE WHEN p.outcome = 'fired' THEN p.run_id END, t
        FROM planned p ORDER BY p.schedule_id, p.tick
        ON CONFLICT DO NOTHING
        RETURNING x.run_id
    ), fired AS MATERIALIZED (
        SELECT p.* FROM planned p JOIN dealt d ON d.run_id = p.run_id
    ), spoken AS (
        INSERT INTO sessions (session_id, workspace_id, title)
        SELECT DISTINCT ON (f.session_id) f.session_id, f.workspace_id, left(f.name, 80)
        FROM fired f WHERE f.session_id IS NOT NULL ORDER BY f.session_id
        ON CONFLICT DO NOTHING
    ), made AS (
        INSERT INTO runs AS r (run_id, workspace_id, session_id, schedule_id, agent, queue, serial,
                               input, metadata, max_attempts, timeout_s, run_at, ready_at, deadline,
                               unique_key, created_at)
        SELECT f.run_id, f.workspace_id, f.session_id, f.schedule_id, f.agent, f.to_queue, false,
               f.input, f.metadata || jsonb_build_object(
                   'schedule', f.name, 'schedule_id', f.schedule_id,
                   'tick', (to_jsonb(f.tick AT TIME ZONE 'UTC') #>> '{}') || 'Z'),
               f.attempts, f.timeout_s, f.run_at, greatest(f.run_at, t),
               greatest(f.run_at, t) + make_interval(secs => coalesce(f.deadline_s, 86400)),
               f.unique_key, t
        FROM fired f ORDER BY f.tick, f.schedule_id
        ON CONFLICT DO NOTHING
        RETURNING r.run_id, r.workspace_id, r.session_id, r.input
    ), said AS (
        INSERT INTO messages (workspace_id, session_id, run_id, role, payload)
        SELECT m.workspace_id, m.session_id, m.run_id, 'user', jsonb_build_object('content', m.input)
        FROM made m WHERE m.session_id IS NOT NULL
    )
    UPDATE schedules s SET next_tick = p.next_tick
    FROM jsonb_to_recordset(p_plans) AS p(schedule_id uuid, next_tick timestamptz)
    WHERE s.schedule_id = p.schedule_id AND s.schedule_id = ANY (v_mine);

    -- A run that was not made, since one of its unique key waits: the tick names that one. If it
    -- was claimed in this very moment there is none, and the whole call is tried again.
    IF EXISTS (SELECT 1 FROM schedules s
               WHERE s.schedule_id = ANY (v_mine) AND s.unique_key IS NOT NULL) THEN
        BEGIN
            UPDATE ticks x SET outcome = 'merged', run_id = (
                SELECT r.run_id FROM runs r
                WHERE r.workspace_id = x.workspace_id AND r.unique_key = s.unique_key
                  AND r.status = 'queued' AND r.claim_no = 0)
            FROM schedules s
            WHERE x.schedule_id = ANY (v_mine) AND x.fired_at = t AND x.outcome = 'fired'
              AND s.schedule_id = x.schedule_id
              AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = x.run_id);
        EXCEPTION WHEN check_violation THEN
            RAISE EXCEPTION 'a run of that unique key has just begun' USING ERRCODE = '40001';
        END;
    END IF;

    RETURN QUERY
    SELECT x.schedule_id, x.tick, x.outcome, x.run_id, x.workspace_id, r.queue,
           greatest(extract(epoch FROM r.run_at - t)::float8, 0),
           extract(epoch FROM t - x.tick)::float8
    FROM jsonb_to_recordset(p_plans) AS p(schedule_id uuid, ticks jsonb)
    CROSS JOIN LATERAL jsonb_to_recordset(p.ticks) AS k(tick timestamptz, run_id uuid)
    JOIN ticks x ON x.schedule_id = p.schedule_id AND x.tick = k.tick
    LEFT JOIN runs r ON r.run_id = x.run_id AND r.run_id = k.run_id AND r.status = 'queued'
    WHERE x.run_id = k.run_id OR (x.schedule_id = ANY (v_mine) AND x.fired_at = t)
    ORDER BY x.tick, x.schedule_id;
END $$;

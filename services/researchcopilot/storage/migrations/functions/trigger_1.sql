-- trigger_1: fire a schedule now: nothing → queued, for a person. Its rule and its next tick stay.
--
-- p_key (with p_route and p_hash) may be NULL. The key and the run are one commit, so that a request
-- that is sent twice fires once.
-- Returns one row: fired (queue: to be pushed) | replayed (the run of the first request) | mismatch
-- (its key, another request) | busy (overlap is skip; run_id is the run in the way). No row: there
-- is no such schedule in this workspace.
CREATE OR REPLACE FUNCTION trigger_1(p_workspace int, p_schedule uuid, p_run uuid, p_route text,
                                     p_key text, p_hash text)
RETURNS TABLE (verdict text, run_id uuid, queue text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t timestamptz;
    s schedules;
    v_run uuid;
    v_hash text;
    v_queue text;
BEGIN
    IF p_key IS NOT NULL THEN
        INSERT INTO idempotency_keys (workspace_id, route, key, body_hash, run_ids)
        VALUES (p_workspace, p_route, p_key, p_hash, ARRAY[p_run])
        ON CONFLICT DO NOTHING;
        -- A statement of its own: only a snapshot after the wait sees the row that won.
        SELECT k.run_ids[1], k.body_hash INTO v_run, v_hash FROM idempotency_keys k
        WHERE k.workspace_id = p_workspace AND k.route = p_route AND k.key = p_key;
        IF v_hash <> p_hash THEN
            RETURN QUERY SELECT 'mismatch', v_run, NULL::text;
            RETURN;
        ELSIF v_run <> p_run THEN
            RETURN QUERY SELECT 'replayed', v_run, NULL::text;
            RETURN;
        END IF;
    END IF;

    -- Sent twice by ourselves, since the first answer was lost.
    RETURN QUERY SELECT 'fired', r.run_id, r.queue FROM runs r
    WHERE r.run_id = p_run AND r.workspace_id = p_workspace;
    IF FOUND THEN RETURN; END IF;

    SELECT x.* INTO s FROM schedules x
    WHERE x.schedule_id = p_schedule AND x.workspace_id = p_workspace FOR NO KEY UPDATE;
    t := clock_timestamp();
    IF s.overlap = 'skip' THEN
        SELECT r.run_id INTO v_run FROM runs r
        WHERE r.schedule_id = p_schedule AND r.schedule_id IS NOT NULL
          AND r.status IN ('queued', 'running') LIMIT 1;
    ELSE
        v_run := NULL;
    END IF;
    IF s.schedule_id IS NULL OR (s.overlap = 'skip' AND v_run IS NOT NULL) THEN
        -- Nothing is made: the key must be free for another try.
        DELETE FROM idempotency_keys k
        WHERE k.workspace_id = p_workspace AND k.route = p_route AND k.key = p_key;
        IF s.schedule_id IS NOT NULL THEN
            RETURN QUERY SELECT 'busy', v_run, NULL::text;
        END IF;
        RETURN;
    END IF;

    IF s.session_id IS NOT NULL THEN
        INSERT INTO sessions (session_id, workspace_id, title)
        VALUES (s.session_id, s.workspace_id, left(s.name, 80)) ON CONFLICT DO NOTHING;
    END IF;

    INSERT INTO runs AS r (run_id, workspace_id, session_id, schedule_id, agent, queue, serial,
                           input, metadata, max_attempts, timeout_s, run_at, ready_at, deadline,
                           created_at)
    SELECT p_run, s.workspace_id, s.session_id, s.schedule_id, s.agent,
           coalesce(s.queue, a.queue, 'runs'), false, s.input,
           s.metadata || jsonb_build_object(
               'schedule', s.name, 'schedule_id', s.schedule_id,
               'tick', (to_jsonb(t AT TIME ZONE 'UTC') #>> '{}') || 'Z'),
           coalesce(s.max_attempts, a.max_attempts, 3), s.timeout_s, t, t,
           t + make_interval(secs => coalesce(s.deadline_s, 86400)), t
    FROM (VALUES (1)) one LEFT JOIN agents a ON a.name = s.agent
    RETURNING r.queue INTO v_queue;

    INSERT INTO ticks (schedule_id, tick, workspace_id, cause, outcome, run_id, fired_at)
    VALUES (s.schedule_id, t, s.workspace_id, 'trigger', 'fired', p_run, t);

    IF s.session_id IS NOT NULL THEN
        INSERT INTO messages (workspace_id, session_id, run_id, role, payload)
        VALUES (s.workspace_id, s.session_id, p_run, 'user',
                jsonb_build_object('content', s.input));
    END IF;
    RETURN QUERY SELECT 'fired', p_run, v_queue;
END $$;

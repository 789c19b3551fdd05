-- expire_1: queued → failed, for runs past their deadline, so that nothing is queued for ever.
--
-- never_started: no worker ever claimed it. deadline: it was tried, and no more time is left.
-- Locks and looks as reclaim_2 does. Returns verdict `failed` with its reason; unparked runs as
-- `push`.
CREATE OR REPLACE FUNCTION expire_1(p_limit int)
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, reason text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t timestamptz;
    v_candidates uuid[];
BEGIN
    v_candidates := ARRAY(
        SELECT r.run_id FROM runs r
        WHERE r.status = 'queued' AND r.deadline < statement_timestamp()
        ORDER BY r.deadline LIMIT p_limit);
    IF v_candidates = '{}' THEN
        RETURN;
    END IF;

    PERFORM 1 FROM sessions s
    WHERE s.session_id = ANY (ARRAY(
        SELECT r.session_id FROM runs r WHERE r.run_id = ANY (v_candidates) AND r.serial))
    ORDER BY s.session_id FOR NO KEY UPDATE;

    t := clock_timestamp();

    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT r.run_id FROM runs r
        WHERE r.run_id = ANY (v_candidates) AND r.status = 'queued' AND r.deadline < t
        ORDER BY r.run_id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE runs r SET status = 'failed', parked = false, finished_at = t,
        error = CASE WHEN r.claim_no = 0 THEN jsonb_build_object(
            'type', 'never_started', 'message', format(
            'No worker took this run before its deadline. Is a worker running that serves the '
            'queue %s, and has it free slots?', r.queue))
        ELSE jsonb_build_object('type', 'deadline', 'message', format(
            'The deadline passed before attempt %s. The last error is in the ledger.',
            r.attempts + 1)) END
    FROM locked l WHERE r.run_id = l.run_id
    RETURNING r.run_id, r.status, r.workspace_id, r.queue, r.error ->> 'type';

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, NULL
    FROM unpark_1(ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (v_candidates) AND r.serial AND r.status = 'failed')) u;
END $$;

-- free_1: the safety net. Sessions whose parked runs nobody would free: the next in line is freed.
--
-- There must be none: every move that ends a turn calls unpark_1 itself. p_sessions are candidates,
-- found without a lock, so most were in the middle of a move; here each session is locked, and only
-- what is still parked with nobody holding the turn, seen after the lock, is freed and returned.
CREATE OR REPLACE FUNCTION free_1(p_sessions uuid[])
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, reason text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE v_locked uuid[];
BEGIN
    v_locked := ARRAY(
        SELECT s.session_id FROM sessions s WHERE s.session_id = ANY (p_sessions)
        ORDER BY s.session_id FOR NO KEY UPDATE SKIP LOCKED);

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, NULL FROM unpark_1(v_locked) u;
END $$;

-- cancel_1: queued → cancelled at once, for a group of ids of one workspace; a running one is asked.
--
-- cancelled   it was queued, parked, delayed or waiting for a retry; it is terminal now
-- cancelling  it is running: cancel_requested_at is set, once and for ever (its worker is returned)
-- else        its terminal status, unchanged. An id of another workspace gets no row.
-- After them the runs that were unparked, as verdict `push`.
CREATE OR REPLACE FUNCTION cancel_1(p_workspace int, p_run_ids uuid[])
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, worker_id uuid,
               claim_no int)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE t timestamptz;
BEGIN
    PERFORM 1 FROM sessions s
    WHERE s.session_id = ANY (ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace AND r.serial))
    ORDER BY s.session_id FOR NO KEY UPDATE;
    PERFORM 1 FROM runs r WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace
    ORDER BY r.run_id FOR NO KEY UPDATE;

    t := clock_timestamp();     -- after both locks, so that times have the order of moves

    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT r.run_id, r.status, r.workspace_id, r.queue FROM runs r
        WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace
    ), moved AS (
        UPDATE runs r SET
            status = CASE WHEN l.status = 'queued' THEN 'cancelled' ELSE r.status END,
            parked = false,
            finished_at = CASE WHEN l.status = 'queued' THEN t END,
            cancel_requested_at = coalesce(r.cancel_requested_at, t)
        FROM locked l WHERE r.run_id = l.run_id AND l.status IN ('queued', 'running')
        RETURNING r.run_id, r.status, r.worker_id, r.claim_no
    )
    SELECT l.run_id,
           CASE WHEN m.status = 'running' THEN 'cancelling' ELSE coalesce(m.status, l.status) END,
           l.workspace_id, l.queue, m.worker_id, m.claim_no
    FROM locked l LEFT JOIN moved m USING (run_id);

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, NULL::uuid, NULL::int
    FROM unpark_1(ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace AND r.serial
          AND r.status = 'cancelled')) u;
END $$;

-- finish_1: running → succeeded / failed / cancelled, or → queued (retry, release), for a group.
--
-- Guard: claim_no AND worker AND status = 'running'. Without the row the ledger is asked: closed by
-- this worker for this claim → `already` (the answer of the first sending was lost), else `stale`.
-- A cancel request is sticky: a late success, a retry and a release all end as cancelled.
-- A retry without an attempt left, or one that would come after the deadline, is a failure.
-- p_kinds: succeeded | failed | cancelled | retry | release. p_delays: seconds, for the last two.
-- Returns a verdict for each claim (its new status, already, stale; for queued its wait), and after
-- them the runs that were unparked, as verdict `push`.
CREATE OR REPLACE FUNCTION finish_1(p_worker uuid, p_run_ids uuid[], p_claim_nos int[],
                                    p_kinds text[], p_results jsonb[], p_errors jsonb[],
                                    p_delays double precision[])
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, wait_s double precision)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE t timestamptz;
BEGIN
    PERFORM 1 FROM sessions s
    WHERE s.session_id IN (SELECT r.session_id FROM runs r
                           WHERE r.run_id = ANY (p_run_ids) AND r.serial)
    ORDER BY s.session_id FOR NO KEY UPDATE;

    t := clock_timestamp();

    RETURN QUERY
    WITH named AS (
        SELECT * FROM unnest(p_run_ids, p_claim_nos, p_kinds, p_results, p_errors, p_delays)
               AS n(run_id, claim_no, kind, result, error, delay_s)
    ), locked AS MATERIALIZED (
        SELECT r.run_id, r.claim_no, r.worker_id, r.status, r.attempts, r.max_attempts, r.deadline,
               r.cancel_requested_at
        FROM runs r WHERE r.run_id = ANY (p_run_ids)
        ORDER BY r.run_id FOR NO KEY UPDATE
    ), judged AS MATERIALIZED (
        SELECT n.*, CASE
            WHEN l.cancel_requested_at IS NOT NULL AND n.kind <> 'failed' THEN 'cancelled'
            WHEN n.kind = 'retry' AND (l.attempts >= l.max_attempts
                 OR t + make_interval(secs => n.delay_s) >= l.deadline) THEN 'failed'
            WHEN n.kind IN ('retry', 'release') THEN 'queued'
            ELSE n.kind END AS status
        FROM named n JOIN locked l ON l.run_id = n.run_id AND l.claim_no = n.claim_no
        WHERE l.worker_id = p_worker AND l.status = 'running'
    ), moved AS (
        UPDATE runs r SET
            status = j.status, worker_id = NULL, lease_until = NULL, claim_id = NULL,
            attempts = r.attempts - (j.kind = 'release')::int,
            result = CASE WHEN j.status = 'succeeded' THEN coalesce(j.result, 'null') END,
            error = CASE WHEN j.status IN ('failed', 'queued') THEN coalesce(j.error, r.error) END,
            finished_at = CASE WHEN j.status <> 'queued' THEN t END,
            run_at = CASE WHEN j.status = 'queued' AND j.delay_s > 0
                          THEN t + make_interval(secs => j.delay_s) ELSE r.run_at END,
            ready_at = CASE WHEN j.status = 'queued' AND (j.delay_s > 0 OR j.kind = 'retry')
                            THEN t + make_interval(secs => j.delay_s) ELSE r.ready_at END,
            hinted_at = CASE WHEN j.status = 'queued' AND j.kind = 'release' THEN t END
        FROM judged j WHERE r.run_id = j.run_id
        RETURNING r.run_id, r.workspace_id, r.session_id, r.queue, r.status, j.claim_no, j.kind,
                  j.result, j.error, j.delay_s
    ), ledger AS (
        UPDATE claims c SET finished_at = t, by_worker = true, error = m.error,
               outcome = CASE WHEN m.status = 'queued' THEN m.kind ELSE m.status END
        FROM moved m WHERE c.run_id = m.run_id AND c.claim_no = m.claim_no
    ), answers AS (
        INSERT INTO messages (workspace_id, session_id, run_id, role, payload)
        SELECT m.workspace_id, m.session_id, m.run_id, 'assistant',
               CASE WHEN jsonb_typeof(m.result -> 'answer') = 'string'
                    THEN jsonb_build_object('content', m.result -> 'answer') || (m.result - 'answer')
                    ELSE jsonb_build_object('content', coalesce(m.result, 'null')) END
        FROM moved m WHERE m.status = 'succeeded' AND m.session_id IS NOT NULL
    )
    SELECT n.run_id,
           CASE WHEN m.run_id IS NOT NULL THEN m.status
                WHEN (SELECT true FROM claims c
                      WHERE c.run_id = n.run_id AND c.claim_no = n.claim_no
                        AND c.worker_id = p_worker AND c.by_worker) THEN 'already'
                ELSE 'stale' END,
           m.workspace_id, m.queue, CASE WHEN m.status = 'queued' THEN m.delay_s END
    FROM named n LEFT JOIN moved m ON m.run_id = n.run_id AND m.claim_no = n.claim_no;

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, 0::float8
    FROM unpark_1(ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (p_run_ids) AND r.serial
          AND r.status IN ('succeeded', 'failed', 'cancelled'))) u;
END $$;

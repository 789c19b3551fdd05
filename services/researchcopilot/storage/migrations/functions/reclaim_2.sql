-- reclaim_2: running → queued / failed / cancelled, for runs whose worker is gone.
--
-- Without p_workers: for runs whose lease has run out. With p_workers: for all that these workers
-- hold, whatever their leases, since somebody knows that they are gone; p_reasons and p_causes say
-- of each why, as a word and as a sentence without its subject ("its Pod was deleted").
--
-- The attempt is refunded and a loss is counted instead: not the run's fault, until it has been
-- in the hands of p_max_losses workers that died. Candidates are found without a lock; then the
-- sessions are locked, then the runs, and each is looked at again: a worker that renewed in
-- between keeps its run, and one that another worker has claimed by now is not of p_workers. SKIP
-- LOCKED: a run that somebody moves right now needs no help.
-- Returns the new status of each, oldest first, with queue, workspace, the worker and a reason: that
-- of p_reasons, or left (its worker said goodbye without it), silent (its worker has not been seen
-- since the lease ended), forgotten (its worker lives, and did not renew this run). Unparked runs
-- follow as verdict `push`.
CREATE OR REPLACE FUNCTION reclaim_2(p_limit int, p_max_losses int, p_workers uuid[] DEFAULT NULL,
                                     p_reasons text[] DEFAULT NULL, p_causes text[] DEFAULT NULL)
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, reason text,
               worker_id uuid)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t timestamptz;
    v_candidates uuid[];
BEGIN
    v_candidates := ARRAY(
        SELECT r.run_id FROM runs r
        WHERE r.status = 'running' AND CASE WHEN p_workers IS NULL
              THEN r.lease_until < statement_timestamp() ELSE r.worker_id = ANY (p_workers) END
        LIMIT p_limit);
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
        SELECT r.run_id, r.worker_id, r.claim_no, r.lease_until,
               CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN r.losses + 1 >= p_max_losses THEN 'failed'
                    ELSE 'queued' END AS target
        FROM runs r
        WHERE r.run_id = ANY (v_candidates) AND r.status = 'running' AND CASE
              WHEN p_workers IS NULL THEN r.lease_until < t ELSE r.worker_id = ANY (p_workers) END
        ORDER BY r.run_id FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE runs r SET
            status = l.target, worker_id = NULL, lease_until = NULL, claim_id = NULL,
            attempts = r.attempts - 1, losses = r.losses + 1, hinted_at = t,
            finished_at = CASE WHEN l.target <> 'queued' THEN t END,
            error = CASE WHEN l.target = 'failed' THEN jsonb_build_object(
                'type', 'worker_lost', 'message', format(
                'The worker died %s times while it had this run. Look at the memory and the exit '
                'codes of the workers in the ledger before you replay it.', r.losses + 1))
                ELSE r.error END
        FROM locked l WHERE r.run_id = l.run_id
        RETURNING r.run_id, r.status, r.workspace_id, r.queue, r.ready_at, r.seq, l.claim_no, l.worker_id,
                  l.lease_until
    ), blamed AS MATERIALIZED (
        SELECT m.*, w.host, w.pid, w.pod, array_position(p_workers, m.worker_id) AS place, CASE
            WHEN p_workers IS NOT NULL THEN p_reasons[array_position(p_workers, m.worker_id)]
            WHEN w.stopped_at IS NOT NULL THEN 'left'
            WHEN w.seen_at > m.lease_until THEN 'forgotten'
            ELSE 'silent' END AS reason
        FROM moved m LEFT JOIN workers w USING (worker_id)
    ), ledger AS (
        UPDATE claims c SET finished_at = t, outcome = 'lost', error = jsonb_build_object(
            'type', 'worker_lost', 'reason', b.reason, 'message', format(
            'The worker%s%s%s %s. The attempt does not count.', ' on host ' || b.host,
            ', process ' || b.pid, ', Pod ' || b.pod, CASE WHEN b.place IS NOT NULL
                THEN format('is gone: %s', p_causes[b.place])
                ELSE format('did not renew its lease, which ended at %s: %s',
                to_char(b.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                CASE b.reason WHEN 'left' THEN 'it stopped without handing this run back'
                     WHEN 'forgotten' THEN 'it lives and no longer has this run in its hands'
                     ELSE 'it died, was stopped, or could not reach Postgres' END) END))
        FROM blamed b
        WHERE c.run_id = b.run_id AND c.claim_no = b.claim_no AND c.finished_at IS NULL
    )
    SELECT b.run_id, b.status, b.workspace_id, b.queue, b.reason, b.worker_id FROM blamed b
    ORDER BY b.ready_at, b.seq;

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, NULL, NULL::uuid
    FROM unpark_1(ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (v_candidates) AND r.serial
          AND r.status IN ('failed', 'cancelled'))) u;
END $$;

-- renew_1: a running run keeps its worker, for exactly the (run, claim_no) pairs that are named.
--
-- What workers of before call, until none is left. It waits for every lock; renew_2 does not.
-- kept    the lease is good for p_lease from now     lost  it is another's: stop and drop it
-- cancel  kept, and somebody asked for it to stop
--
-- Takes no session lock: status, claim_no and parked stay as they are. lease_until is in no index,
-- so this is a HOT update.
CREATE OR REPLACE FUNCTION renew_1(p_worker uuid, p_run_ids uuid[], p_claim_nos int[],
                                   p_lease interval)
RETURNS TABLE (run_id uuid, claim_no int, verdict text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE t timestamptz;
BEGIN
    PERFORM 1 FROM runs r WHERE r.run_id = ANY (p_run_ids) ORDER BY r.run_id FOR NO KEY UPDATE;
    t := clock_timestamp();
    RETURN QUERY
    WITH named AS (
        SELECT n.run_id, n.claim_no FROM unnest(p_run_ids, p_claim_nos) AS n(run_id, claim_no)
    ), kept AS (
        UPDATE runs r SET lease_until = t + p_lease
        FROM named n
        WHERE r.run_id = n.run_id AND r.claim_no = n.claim_no AND r.worker_id = p_worker
          AND r.status = 'running'
        RETURNING r.run_id, r.claim_no, r.cancel_requested_at IS NOT NULL AS asked
    )
    SELECT n.run_id, n.claim_no,
           CASE WHEN k.run_id IS NULL THEN 'lost' WHEN k.asked THEN 'cancel' ELSE 'kept' END
    FROM named n LEFT JOIN kept k USING (run_id, claim_no);
END $$;

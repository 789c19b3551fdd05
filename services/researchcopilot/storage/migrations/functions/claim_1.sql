-- claim_1: queued → running, for a group of ids, with a verdict for each of them.
--
-- claimed  it is this worker's now          mine    this very claim was answered before (resent)
-- later    not due; wait_s says how long    parked  its session is busy; unpark pushes it again
--          (for `claimed` and `mine`, wait_s says how long it has been ready: now, by this clock)
-- gone     terminal, another worker's, past its deadline, or unknown: drop the entry
--
-- Sessions are locked first, then runs; only the next statement looks, with a snapshot newer than
-- the locks. One plain statement is wrong: its NOT EXISTS would see the time before the lock.
-- LIMIT 1 subqueries, not EXISTS: inside CASE an EXISTS may be hashed over all running runs.
CREATE OR REPLACE FUNCTION claim_1(p_run_ids uuid[], p_worker uuid, p_claim uuid, p_lease interval)
RETURNS TABLE (run_id uuid, verdict text, wait_s double precision, claim_no int, workspace_id int,
               session_id uuid, queue text, agent text, input jsonb, metadata jsonb, attempts int,
               max_attempts int, losses int, timeout_s double precision, deadline timestamptz,
               created_at timestamptz, ready_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE t timestamptz;
BEGIN
    PERFORM 1 FROM sessions s
    WHERE s.session_id = ANY (ARRAY(
        SELECT r.session_id FROM runs r WHERE r.run_id = ANY (p_run_ids) AND r.serial))
    ORDER BY s.session_id FOR NO KEY UPDATE;
    PERFORM 1 FROM runs r WHERE r.run_id = ANY (p_run_ids) ORDER BY r.run_id FOR NO KEY UPDATE;

    t := clock_timestamp();     -- after both locks: a lease must not lose the time they took

    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT r.* FROM runs r WHERE r.run_id = ANY (p_run_ids)
    ), judged AS MATERIALIZED (
        SELECT l.*, CASE
            WHEN l.status = 'running' AND l.claim_id = p_claim THEN 'mine'
            WHEN l.status <> 'queued' OR l.deadline <= t THEN 'gone'
            WHEN l.run_at > t THEN 'later'
            WHEN NOT l.serial OR l.claim_no > 0 THEN 'claimed'
            WHEN (SELECT true FROM runs o
                  WHERE o.session_id = l.session_id AND o.serial AND o.claim_no > 0
                    AND o.status IN ('queued', 'running') LIMIT 1) THEN 'parked'
            WHEN (SELECT true FROM runs o
                  WHERE o.session_id = l.session_id AND o.serial AND o.status = 'queued'
                    AND o.claim_no = 0 AND o.seq < l.seq AND o.run_at <= t LIMIT 1) THEN 'parked'
            ELSE 'claimed' END AS verdict
        FROM locked l
    ), moved AS (
        UPDATE runs r SET status = 'running', parked = false, claim_no = r.claim_no + 1,
               attempts = r.attempts + 1, claim_id = p_claim, worker_id = p_worker,
               lease_until = t + p_lease, started_at = coalesce(r.started_at, t)
        FROM judged j WHERE r.run_id = j.run_id AND j.verdict = 'claimed'
        RETURNING r.run_id, r.claim_no, r.attempts, r.workspace_id
    ), waits AS (
        UPDATE runs r SET parked = true
        FROM judged j WHERE r.run_id = j.run_id AND j.verdict = 'parked' AND NOT r.parked
    ), ledger AS (
        INSERT INTO claims (run_id, claim_no, workspace_id, worker_id, claim_id, started_at)
        SELECT m.run_id, m.claim_no, m.workspace_id, p_worker, p_claim, t FROM moved m
    )
    SELECT i.run_id, coalesce(j.verdict, 'gone'),
           CASE j.verdict WHEN 'later' THEN extract(epoch FROM j.run_at - t)::float8
                          WHEN 'claimed' THEN extract(epoch FROM t - j.ready_at)::float8
                          WHEN 'mine' THEN extract(epoch FROM t - j.ready_at)::float8 END,
           coalesce(m.claim_no, j.claim_no), j.workspace_id, j.session_id, j.queue, j.agent,
           CASE WHEN j.verdict IN ('claimed', 'mine') THEN j.input END,
           CASE WHEN j.verdict IN ('claimed', 'mine') THEN j.metadata END,
           coalesce(m.attempts, j.attempts), j.max_attempts, j.losses, j.timeout_s, j.deadline,
           j.created_at, j.ready_at
    FROM (SELECT DISTINCT unnest(p_run_ids) AS run_id) i
    LEFT JOIN judged j ON j.run_id = i.run_id
    LEFT JOIN moved m ON m.run_id = i.run_id;
END $$;

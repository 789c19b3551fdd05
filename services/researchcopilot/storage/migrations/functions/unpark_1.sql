-- unpark_1: give the turn of each session to the next in line.
--
-- Called in a statement after each terminal move, in the same transaction, while the caller holds
-- the session rows: a run that was parked by a claim before has been seen, one that comes later
-- will see the move. Nobody holds the turn → the smallest seq that is parked or due is next; if it
-- is parked, it is freed here and the caller pushes it after the commit.
CREATE OR REPLACE FUNCTION unpark_1(p_sessions uuid[])
RETURNS TABLE (run_id uuid, workspace_id int, queue text)
LANGUAGE sql VOLATILE AS $$
    UPDATE runs r SET parked = false, ready_at = clock_timestamp()
    WHERE r.run_id = ANY (ARRAY(
        SELECT n.run_id
        FROM (SELECT DISTINCT unnest(p_sessions) AS session_id) s
        CROSS JOIN LATERAL (
            SELECT o.run_id, o.parked FROM runs o
            WHERE o.session_id = s.session_id AND o.serial AND o.status = 'queued'
              AND o.claim_no = 0 AND (o.parked OR o.run_at <= clock_timestamp())
            ORDER BY o.seq LIMIT 1
        ) n
        WHERE n.parked AND (
            SELECT true FROM runs h
            WHERE h.session_id = s.session_id AND h.serial AND h.claim_no > 0
              AND h.status IN ('queued', 'running') LIMIT 1) IS NULL))
    RETURNING r.run_id, r.workspace_id, r.queue
$$;

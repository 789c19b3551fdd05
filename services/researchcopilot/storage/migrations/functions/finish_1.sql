-- finish_1: running → succeeded / failed / cancelled, or → queued (retry, release), for a group.
--
-- Guard: claim_no AND worker AND status = 'running'. Without the row the ledger is asked: closed by
-- this worker for this claim → `already` (the answer of the first sending was lost), else `stale`.
-- A cancel request is sticky: a late success, a retry and a release all end as cancelled.
-- A retry without an attempt left, or one that would come after the deadline, is a failure.
-- p_kinds: succeeded | failed | cancelled | retry | release. p_delays: seconds, for the last two.
-- p_follow_ups: what is to come of a run once it has succeeded, and only then, in this transaction:
-- {"memory": {memory_id, question, text, tokens, days}, "run": {run_id, agent, queue, delay_s,
-- max_attempts}}, each of both or none. At most one memory, and one run of an agent, for a run.
-- Returns a verdict for each claim (its new status, already, stale; for queued its wait), and after
-- them what has to be pushed, as verdict `push` (with its wait): runs that were unparked, and those
-- that follow. A run may be named twice: a worker that has lost it and taken it once more ends both
-- claims.
CREATE OR REPLACE FUNCTION finish_1(p_worker uuid, p_run_ids uuid[], p_claim_nos int[], p_kinds text[],
                         p_results jsonb[], p_errors jsonb[], p_delays double precision[],
                         p_follow_ups jsonb[] DEFAULT NULL)
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, wait_s double precision,
               claim_no int)
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

    t := clock_timestamp();     -- after both locks, so that times have the order of moves

    RETURN QUERY
    WITH named AS (
        SELECT * FROM unnest(p_run_ids, p_claim_nos, p_kinds, p_results, p_errors, p_delays)
               AS n(run_id, claim_no, kind, result, error, delay_s)
    ), locked AS MATERIALIZED (
        SELECT r.run_id, r.claim_no, r.worker_id, r.status, r.attempts, r.max_attempts, r.deadline,
               r.cancel_requested_at
        FROM runs r WHERE r.run_id = ANY (p_run_ids)
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
           m.workspace_id, m.queue, CASE WHEN m.status = 'queued' THEN m.delay_s END, n.claim_no
    FROM named n LEFT JOIN moved m ON m.run_id = n.run_id AND m.claim_no = n.claim_no;

    RETURN QUERY
    SELECT u.run_id, 'push', u.workspace_id, u.queue, 0::float8, NULL::int
    FROM unpark_1(ARRAY(
        SELECT r.session_id FROM runs r
        WHERE r.run_id = ANY (p_run_ids) AND r.serial
          AND r.status IN ('succeeded', 'failed', 'cancelled'))) u;

    -- Statements of their own: a group in which nobody asks for it pays nothing. finished_at = t are
    -- the runs that this very call has moved.
    IF num_nonnulls(VARIADIC p_follow_ups) > 0 THEN
        INSERT INTO memories (memory_id, workspace_id, run_id, question, text, tokens, created_at,
                              expires_at)
        SELECT m.memory_id, r.workspace_id, r.run_id, m.question, m.text, m.tokens, t,
               t + m.days * interval '1 day'
        FROM unnest(p_run_ids, p_claim_nos, p_follow_ups) AS n(run_id, claim_no, follow_up)
        JOIN runs r ON r.run_id = n.run_id AND r.claim_no = n.claim_no
        CROSS JOIN LATERAL jsonb_to_record(n.follow_up -> 'memory')
             AS m(memory_id uuid, question text, text text, tokens text[], days double precision)
        WHERE r.status = 'succeeded' AND r.finished_at = t AND m.memory_id IS NOT NULL
        ORDER BY r.run_id
        ON CONFLICT DO NOTHING;

        RETURN QUERY
        INSERT INTO runs AS x (run_id, workspace_id, follows, agent, queue, serial, input, metadata,
                               max_attempts, run_at, ready_at, deadline, created_at)
        SELECT f.run_id, r.workspace_id, r.run_id, f.agent, f.queue, false,
               jsonb_build_object('run_id', r.run_id), jsonb_build_object('follows', r.run_id),
               f.max_attempts, due.at, due.at, due.at + interval '24 hours', t
        FROM unnest(p_run_ids, p_claim_nos, p_follow_ups) AS n(run_id, claim_no, follow_up)
        JOIN runs r ON r.run_id = n.run_id AND r.claim_no = n.claim_no
        CROSS JOIN LATERAL jsonb_to_record(n.follow_up -> 'run')
             AS f(run_id uuid, agent text, queue text, delay_s double precision, max_attempts int)
        CROSS JOIN LATERAL (SELECT t + make_interval(secs => f.delay_s) AS at) due
        WHERE r.status = 'succeeded' AND r.finished_at = t AND f.run_id IS NOT NULL
        ORDER BY r.run_id
        ON CONFLICT DO NOTHING
        RETURNING x.run_id, 'push', x.workspace_id, x.queue,
                  extract(epoch FROM x.run_at - t)::float8, NULL::int;
    END IF;
END $$;

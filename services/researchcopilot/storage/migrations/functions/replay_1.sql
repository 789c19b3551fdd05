-- replay_1: nothing → queued, for dead letters of one workspace: each gets a new run of the same
-- input, in the same session, with its finished steps unless p_fresh.
--
-- The dead letter gets resolved_by in this transaction; a second replay returns the same new run.
-- p_new_ids are made by the caller, one for each id, so that it can be sent twice.
-- Verdicts: replayed (new_run_id), already (new_run_id of the first time), or the status of a run
-- that did not fail. A discarded one can be replayed all the same. No row: another workspace's.
CREATE OR REPLACE FUNCTION replay_1(p_workspace int, p_run_ids uuid[], p_new_ids uuid[],
                                    p_fresh boolean)
RETURNS TABLE (run_id uuid, verdict text, new_run_id uuid, queue text)
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
    PERFORM 1 FROM runs r
    WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace
    ORDER BY r.run_id FOR NO KEY UPDATE;

    t := clock_timestamp();

    RETURN QUERY
    WITH named AS (
        -- One that is named twice is replayed once.
        SELECT DISTINCT ON (n.run_id) n.run_id, n.new_id, n.place
        FROM unnest(p_run_ids, p_new_ids) WITH ORDINALITY AS n(run_id, new_id, place)
        ORDER BY n.run_id, n.place
    ), locked AS MATERIALIZED (
        SELECT r.* FROM runs r WHERE r.run_id = ANY (p_run_ids) AND r.workspace_id = p_workspace
    ), judged AS MATERIALIZED (
        SELECT r.*, n.new_id, n.place, CASE
            WHEN r.status <> 'failed' THEN r.status
            WHEN r.resolved_by IS NOT NULL THEN 'already'
            ELSE 'replayed' END AS verdict
        FROM named n JOIN locked r ON r.run_id = n.run_id
    ), made AS (
        INSERT INTO runs (run_id, workspace_id, session_id, agent, queue, serial, input, metadata,
                          max_attempts, timeout_s, deadline, run_at, ready_at, replay_of,
                          created_at)
        SELECT j.new_id, j.workspace_id, j.session_id, j.agent, j.queue, j.serial, j.input,
               j.metadata, j.max_attempts, j.timeout_s, t + interval '24 hours', t, t, j.run_id, t
        FROM judged j WHERE j.verdict = 'replayed' ORDER BY j.place
    ), kept AS (
        INSERT INTO steps (run_id, name, claim_no, workspace_id, value, created_at)
        SELECT j.new_id, s.name, 0, s.workspace_id, s.value, s.created_at
        FROM judged j JOIN steps s ON s.run_id = j.run_id
        WHERE j.verdict = 'replayed' AND NOT p_fresh
    ), resolved AS (
        UPDATE runs r SET resolved_by = j.new_id
        FROM judged j WHERE r.run_id = j.run_id AND j.verdict = 'replayed'
    )
    SELECT j.run_id,
           -- Our own first sending, whose answer was lost, is no "already".
           CASE WHEN j.resolved_by = j.new_id THEN 'replayed' ELSE j.verdict END,
           CASE WHEN j.verdict = 'replayed' THEN j.new_id ELSE j.resolved_by END, j.queue
    FROM judged j;
END $$;

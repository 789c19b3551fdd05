-- submit_1: nothing → queued, for a group of members; each member is all or nothing.
--
-- p_members: [{member, workspace_id, route, key, body_hash, run_ids}], key absent without one.
-- p_runs:    [{member, run_id, workspace_id, session_id, agent, queue, serial, on_conflict, input,
--              metadata, max_attempts, timeout_s, deadline, run_at, delay_s, unique_key}], in order.
-- Returns for each member: created | replayed | mismatch (its key, another body) | foreign (a
-- session of another workspace) | busy (on_conflict reject; run_ids names the run in the way), with
-- its run ids and, where created, their times. For on_conflict cancel_previous also a row
-- `cancelling` for each running run that was asked to stop: run_ids holds it and its worker.
--
-- The caller puts members that share a key, or a session that one of them rejects or cancels for,
-- into separate calls: their order has to mean something.
-- What is looked up by key is a LATERAL with a LIMIT or OFFSET, or an array: no plan, whenever it was
-- made, can read a table for it.
-- Order of locks: keys, new sessions, sessions, runs, each sorted. Safe to send twice: run ids are
-- made by the caller before, so a second sending finds its own key and its own rows.
CREATE OR REPLACE FUNCTION submit_1(p_members jsonb, p_runs jsonb)
RETURNS TABLE (member int, verdict text, run_ids uuid[], created_at timestamptz,
               run_at timestamptz[], deadline timestamptz[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS $$
#variable_conflict use_column
DECLARE
    t timestamptz;
    v_out jsonb := '{}';        -- members that make nothing: member → {verdict, run_ids}
    v_keyed boolean;
    v_strict boolean;           -- does any run care about its session's other runs?
BEGIN
    v_keyed := p_members @? '$[*].key';
    v_strict := p_runs @? '$[*] ? (@.on_conflict == "reject" || @.on_conflict == "cancel_previous")';

    IF v_keyed THEN
        INSERT INTO idempotency_keys AS k (workspace_id, route, key, body_hash, run_ids)
        SELECT m.workspace_id, m.route, m.key, m.body_hash, m.run_ids
        FROM jsonb_to_recordset(p_members)
             AS m(workspace_id int, route text, key text, body_hash text, run_ids uuid[])
        WHERE m.key IS NOT NULL
        ORDER BY m.workspace_id, m.route, m.key
        ON CONFLICT DO NOTHING;

        -- A statement of its own: only a snapshot after the wait sees the row that won.
        SELECT coalesce(jsonb_object_agg(m.member, jsonb_build_object(
                   'verdict', CASE WHEN k.body_hash = m.body_hash THEN 'replayed'
                                   ELSE 'mismatch' END,
                   'run_ids', to_jsonb(k.run_ids))), '{}')
        INTO v_out
        FROM jsonb_to_recordset(p_members)
             AS m(member int, workspace_id int, route text, key text, body_hash text, run_ids uuid[])
        CROSS JOIN LATERAL (SELECT x.body_hash, x.run_ids FROM idempotency_keys x
                            WHERE x.workspace_id = m.workspace_id AND x.route = m.route
                              AND x.key = m.key LIMIT 1) k
        WHERE k.run_ids <> m.run_ids;
    END IF;

    SELECT v_out || coalesce(jsonb_object_agg(r.member, '{"verdict": "foreign"}'::jsonb), '{}')
    INTO v_out
    FROM jsonb_to_recordset(p_runs) AS r(member int, workspace_id int, session_id uuid)
    CROSS JOIN LATERAL (SELECT x.workspace_id FROM sessions x
                        WHERE x.session_id = r.session_id LIMIT 1) s
    WHERE s.workspace_id <> r.workspace_id AND NOT v_out ? r.member::text;

    INSERT INTO sessions (session_id, workspace_id, title)
    SELECT DISTINCT ON (r.session_id) r.session_id, r.workspace_id,
           left(CASE WHEN jsonb_typeof(r.input) = 'string' THEN r.input #>> '{}'
                     ELSE coalesce(r.input ->> 'question', '') END, 80)
    FROM jsonb_to_recordset(p_runs)
         AS r(member int, workspace_id int, session_id uuid, input jsonb)
    WHERE r.session_id IS NOT NULL AND NOT v_out ? r.member::text
    ORDER BY r.session_id
    ON CONFLICT DO NOTHING;

    -- The order of a session's runs is that of this lock.
    PERFORM 1 FROM sessions s
    WHERE s.session_id = ANY (ARRAY(
        SELECT r.session_id
        FROM jsonb_to_recordset(p_runs) AS r(member int, session_id uuid, serial boolean)
        WHERE r.serial AND NOT v_out ? r.member::text))
    ORDER BY s.session_id FOR NO KEY UPDATE;

    -- A session that another workspace made since we looked: look again, from the start.
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(p_runs) AS r(member int, workspace_id int, session_id uuid)
        CROSS JOIN LATERAL (SELECT x.workspace_id FROM sessions x
                            WHERE x.session_id = r.session_id LIMIT 1) s
        WHERE s.workspace_id <> r.workspace_id AND NOT v_out ? r.member::text) THEN
        RAISE EXCEPTION 'a session of that id was made elsewhere' USING ERRCODE = '40001';
    END IF;

    t := clock_timestamp();

    IF v_strict THEN
        -- Busy: a serial run holds the session's turn, or waits for it and is due. A second sending
        -- finds its own run in the way, which is not in its way.
        SELECT v_out || coalesce(jsonb_object_agg(r.member, jsonb_build_object(
                   'verdict', 'busy', 'run_ids', jsonb_build_array(busy.run_id))), '{}')
        INTO v_out
        FROM jsonb_to_recordset(p_runs)
             AS r(member int, run_id uuid, session_id uuid, on_conflict text)
        CROSS JOIN LATERAL (
            SELECT o.run_id FROM runs o
            WHERE o.session_id = r.session_id AND o.serial AND o.run_id <> r.run_id
              AND o.status IN ('queued', 'running') AND (o.claim_no > 0 OR o.run_at <= t)
            ORDER BY o.seq LIMIT 1
        ) busy
        WHERE r.on_conflict = 'reject' AND NOT v_out ? r.member::text
          AND (SELECT true FROM runs own WHERE own.run_id = r.run_id LIMIT 1) IS NULL;

        -- Every serial run of the session that has not ended and is older than this one.
        RETURN QUERY
        WITH previous AS MATERIALIZED (
            SELECT o.run_id, o.status FROM runs o
            WHERE o.status IN ('queued', 'running') AND o.run_id = ANY (ARRAY(
                SELECT x.run_id
                FROM jsonb_to_recordset(p_runs)
                     AS r(member int, run_id uuid, session_id uuid, on_conflict text)
                CROSS JOIN LATERAL (
                    SELECT y.run_id FROM runs y
                    WHERE y.session_id = r.session_id AND y.serial
                      AND y.status IN ('queued', 'running') OFFSET 0) x
                WHERE r.on_conflict = 'cancel_previous' AND NOT v_out ? r.member::text
                  AND (SELECT true FROM runs own WHERE own.run_id = r.run_id LIMIT 1) IS NULL))
            ORDER BY o.run_id FOR NO KEY UPDATE
        ), asked AS (
            UPDATE runs r SET
                status = CASE WHEN p.status = 'queued' THEN 'cancelled' ELSE r.status END,
                parked = false,
                finished_at = CASE WHEN p.status = 'queued' THEN t END,
                cancel_requested_at = coalesce(r.cancel_requested_at, t)
            FROM previous p
            WHERE r.run_id = ANY (ARRAY(SELECT run_id FROM previous)) AND r.run_id = p.run_id
            RETURNING r.run_id, r.status, r.worker_id
        )
        SELECT -1, 'cancelling', ARRAY[a.run_id, a.worker_id], NULL::timestamptz,
               NULL::timestamptz[], NULL::timestamptz[]
        FROM asked a WHERE a.status = 'running';
    END IF;

    IF v_keyed AND v_out <> '{}' THEN
        -- Nothing was made for these: their keys must be free for another try.
        DELETE FROM idempotency_keys k
        USING jsonb_to_recordset(p_members)
              AS m(member int, workspace_id int, route text, key text, run_ids uuid[])
        WHERE v_out -> m.member::text ->> 'verdict' IN ('foreign', 'busy')
          AND k.workspace_id = m.workspace_id AND k.route = m.route AND k.key = m.key
          AND k.run_ids = m.run_ids;
    END IF;

    WITH wanted AS MATERIALIZED (
        SELECT r.*, CASE WHEN r.delay_s IS NOT NULL THEN t + make_interval(secs => r.delay_s)
                         ELSE greatest(coalesce(r.run_at, t), t) END AS due
        FROM ROWS FROM (jsonb_to_recordset(p_runs)
             AS (member int, run_id uuid, workspace_id int, session_id uuid, agent text, queue text,
                 serial boolean, input jsonb, metadata jsonb, max_attempts int,
                 timeout_s double precision, deadline timestamptz, run_at timestamptz,
                 delay_s double precision, unique_key text)) WITH ORDINALITY
             AS r(member, run_id, workspace_id, session_id, agent, queue, serial, input, metadata,
                  max_attempts, timeout_s, deadline, run_at, delay_s, unique_key, place)
        WHERE NOT v_out ? r.member::text
    ), made AS (
        INSERT INTO runs AS x (run_id, workspace_id, session_id, agent, queue, serial, input,
                          metadata, max_attempts, timeout_s, deadline, run_at, ready_at,
                          unique_key, created_at)
        SELECT w.run_id, w.workspace_id, w.session_id, w.agent, w.queue, w.serial, w.input,
               w.metadata, w.max_attempts, w.timeout_s,
               coalesce(w.deadline, w.due + interval '24 hours'), w.due, w.due, w.unique_key, t
        FROM wanted w ORDER BY w.place
        ON CONFLICT DO NOTHING
        RETURNING x.run_id, x.workspace_id, x.session_id, x.input
    )
    INSERT INTO messages (workspace_id, session_id, run_id, role, payload)
    SELECT m.workspace_id, m.session_id, m.run_id, 'user', jsonb_build_object('content', m.input)
    FROM made m WHERE m.session_id IS NOT NULL;

    UPDATE sessions s SET updated_at = t
    WHERE s.created_at < t - interval '1 second' AND s.session_id = ANY (ARRAY(
        SELECT r.session_id FROM jsonb_to_recordset(p_runs)
               AS r(member int, session_id uuid, serial boolean)
        WHERE r.serial AND NOT v_out ? r.member::text));

    -- Read back what stands there: for a second sending it is the rows of the first.
    RETURN QUERY
    SELECT m.member,
           CASE WHEN v_out ? m.member::text THEN v_out -> m.member::text ->> 'verdict'
                WHEN found.run_ids IS NULL THEN 'replayed'
                ELSE 'created' END,
           CASE WHEN v_out ? m.member::text THEN
                     ARRAY(SELECT jsonb_array_elements_text(v_out -> m.member::text -> 'run_ids'))::uuid[]
                WHEN found.run_ids IS NULL THEN waiting.run_ids
                ELSE found.run_ids END,
           found.created_at, found.run_at, found.deadline
    FROM jsonb_to_recordset(p_members) AS m(member int, run_ids uuid[])
    CROSS JOIN LATERAL (
        SELECT array_agg(x.run_id ORDER BY i.place) AS run_ids, min(x.created_at) AS created_at,
               array_agg(x.run_at ORDER BY i.place) AS run_at,
               array_agg(x.deadline ORDER BY i.place) AS deadline
        FROM unnest(m.run_ids) WITH ORDINALITY AS i(run_id, place)
        JOIN runs x ON x.run_id = i.run_id
    ) found
    LEFT JOIN LATERAL (
        SELECT array_agg(x.run_id) AS run_ids
        FROM jsonb_to_recordset(p_runs) AS r(member int, workspace_id int, unique_key text)
        JOIN runs x ON x.workspace_id = r.workspace_id AND x.unique_key = r.unique_key
         AND x.status = 'queued' AND x.claim_no = 0
        WHERE r.member = m.member AND found.run_ids IS NULL
    ) waiting ON true;
END $$;

-- submit_object_1: the run that an object of a cluster asks for, nothing → queued, once a generation.
--
-- p_object: {uid, cluster, namespace, name, workspace_id, generation, asked}; p_quota: runs of objects
-- of this namespace that may be unfinished at once; p_members and p_runs: one member, as of submit_1.
-- Returns one row with a verdict of its own:
--   known  this generation or a newer one has its run (run_ids)
--   gone   the object was deleted; whoever asks has not heard of it yet
--   quota  the namespace has `held` unfinished runs already
-- or else what submit_1 says, all its rows. Only `created` leaves anything behind.
--
-- Order of locks: the object, its namespace (only to count), then those of submit_1. Safe to send
-- twice: the second finds the run of the first.
CREATE OR REPLACE FUNCTION submit_object_1(p_object jsonb, p_quota int, p_members jsonb, p_runs jsonb)
RETURNS TABLE (verdict text, run_ids uuid[], held int, created_at timestamptz,
               run_at timestamptz[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    o record;
    v_run uuid;
    v_newest bigint;
    v_gone timestamptz;
    v_held int;
    s record;
BEGIN
    SELECT * INTO o FROM jsonb_to_record(p_object)
        AS x(uid uuid, cluster text, namespace text, name text, workspace_id int,
             generation bigint, asked text);

    INSERT INTO objects (uid, kind, cluster, namespace, name, workspace_id)
    VALUES (o.uid, 'ResearchRun', o.cluster, o.namespace, o.name, o.workspace_id)
    ON CONFLICT DO NOTHING;
    SELECT x.gone_at INTO v_gone FROM objects x WHERE x.uid = o.uid FOR NO KEY UPDATE;
    IF v_gone IS NOT NULL THEN
        RETURN QUERY SELECT 'gone', NULL::uuid[], NULL::int, NULL::timestamptz, NULL::timestamptz[];
        RETURN;
    END IF;

    -- A statement of its own, after the lock: it sees what another operator has just committed.
    SELECT x.run_id, x.generation INTO v_run, v_newest FROM object_runs x
    WHERE x.uid = o.uid ORDER BY x.generation DESC LIMIT 1;
    IF v_newest >= o.generation THEN
        RETURN QUERY SELECT 'known', ARRAY[v_run], NULL::int, NULL::timestamptz,
                            NULL::timestamptz[];
        RETURN;
    END IF;

    -- Counted one after the other, or two that come at once would both find the last place.
    PERFORM pg_advisory_xact_lock(
        hashtextextended('research_runs:' || o.cluster || '/' || o.namespace, 0));
    SELECT count(*) INTO v_held
    FROM objects x
    CROSS JOIN LATERAL (SELECT z.run_id FROM object_runs z WHERE z.uid = x.uid OFFSET 0) y
    CROSS JOIN LATERAL (SELECT z.status FROM runs z WHERE z.run_id = y.run_id OFFSET 0) r
    WHERE x.cluster = o.cluster AND x.kind = 'ResearchRun' AND x.namespace = o.namespace
      AND x.gone_at IS NULL AND x.uid <> o.uid AND r.status IN ('queued', 'running');
    IF v_held >= p_quota THEN
        RETURN QUERY SELECT 'quota', NULL::uuid[], v_held, NULL::timestamptz, NULL::timestamptz[];
        RETURN;
    END IF;

    FOR s IN SELECT * FROM submit_1(p_members, p_runs) LOOP
        IF s.verdict = 'created' THEN
            INSERT INTO object_runs (uid, generation, asked, run_id)
            VALUES (o.uid, o.generation, o.asked, s.run_ids[1]);
            UPDATE objects x SET generation = greatest(x.generation, o.generation),
                                 asked = o.asked WHERE x.uid = o.uid;
        END IF;
        RETURN QUERY SELECT s.verdict, s.run_ids, NULL::int, s.created_at, s.run_at;
    END LOOP;
END $$;

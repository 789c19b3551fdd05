-- reclaim_1: running → queued / failed / cancelled, for runs whose lease has run out.
--
-- What janitors of before call, until none is left: reclaim_2 without workers that are known to be
-- gone.
CREATE OR REPLACE FUNCTION reclaim_1(p_limit int, p_max_losses int)
RETURNS TABLE (run_id uuid, verdict text, workspace_id int, queue text, reason text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT r.run_id, r.verdict, r.workspace_id, r.queue, r.reason
                 FROM reclaim_2(p_limit, p_max_losses) r;
END $$;

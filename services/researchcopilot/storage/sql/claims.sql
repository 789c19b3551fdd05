-- name: of_run
-- The ledger of one run, oldest first; a worker's row is pruned a day after it was seen last.
SELECT c.run_id, c.claim_no, c.worker_id, w.host, w.pid, w.pod, c.started_at, c.finished_at,
       c.outcome, c.by_worker, c.error
FROM claims c LEFT JOIN workers w USING (worker_id)
WHERE c.run_id = %(run_id)s::uuid AND c.workspace_id = %(workspace_id)s
ORDER BY c.claim_no

-- name: since_loss
SELECT extract(epoch FROM c.started_at - lost.finished_at)::float8 AS wait_s
FROM claims c JOIN claims lost ON lost.run_id = c.run_id AND lost.claim_no = c.claim_no - 1
WHERE c.run_id = %(run_id)s::uuid AND c.claim_no = %(claim_no)s AND lost.outcome = 'lost'

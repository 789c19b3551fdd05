-- name: runs_by_status
SELECT status, count(*) FROM runs GROUP BY status ORDER BY status

-- name: messages_by_role
SELECT role, count(*) FROM messages GROUP BY role ORDER BY role DESC

-- name: claims
-- The ledger of some runs, with the process of each worker.
SELECT c.run_id, c.claim_no, c.worker_id, w.pid, c.started_at, c.finished_at, c.outcome
FROM claims c LEFT JOIN workers w USING (worker_id)
WHERE c.run_id = ANY (%(run_ids)s::uuid[])
ORDER BY c.run_id, c.claim_no

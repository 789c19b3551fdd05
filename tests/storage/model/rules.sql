-- What must be true after each step of a model test, whatever was cut: each row is a fault. The
-- rules of a finished test, and those that its triggers keep, are in tests/chaos/watch.sql.
CREATE VIEW model_findings AS
SELECT rule, run_id, detail FROM watch_trouble
UNION ALL
SELECT 'a row of the ledger is open for each running run, and for no other',
       coalesce(r.run_id, c.run_id), format('run %s, ledger %s', r.claim_no, c.claim_no)
FROM (SELECT * FROM runs WHERE status = 'running') r
FULL JOIN (SELECT * FROM claims WHERE outcome IS NULL) c
  ON (c.run_id, c.claim_no, c.worker_id, c.claim_id)
   = (r.run_id, r.claim_no, r.worker_id, r.claim_id)
WHERE r.run_id IS NULL OR c.run_id IS NULL
UNION ALL
SELECT 'at most one run of a session has its turn', min(r.run_id::text)::uuid,
       format('session %s: %s', r.session_id, count(*))
FROM runs r WHERE r.serial AND r.claim_no > 0 AND r.status IN ('queued', 'running')
GROUP BY r.session_id HAVING count(*) > 1
UNION ALL
SELECT 'a parked run waits for a turn that is held, or for a smaller one that is due', p.run_id,
       format('session %s', p.session_id)
FROM runs p
WHERE p.parked AND NOT EXISTS (
    SELECT 1 FROM runs o WHERE o.session_id = p.session_id AND o.serial
    AND (o.claim_no > 0 AND o.status IN ('queued', 'running')
         OR o.claim_no = 0 AND o.status = 'queued' AND NOT o.parked AND o.seq < p.seq
            AND o.run_at <= clock_timestamp()))
UNION ALL
SELECT 'attempts and losses are those of the ledger, also while it runs', r.run_id,
       format('attempts %s, losses %s; the ledger: %s', r.attempts, r.losses,
              string_agg(coalesce(c.outcome, 'open'), ', ' ORDER BY c.claim_no))
FROM runs r LEFT JOIN claims c ON c.run_id = r.run_id
GROUP BY r.run_id
HAVING r.losses <> count(*) FILTER (WHERE c.outcome = 'lost')
    OR count(c.run_id) <> r.claim_no
    OR count(c.run_id) FILTER (WHERE coalesce(c.outcome, 'open') NOT IN ('lost', 'release'))
       - r.attempts NOT BETWEEN 0 AND count(*) FILTER (WHERE c.outcome = 'cancelled')
UNION ALL
SELECT 'one answer for each success of a session, and it is the result', r.run_id,
       format('%s, %s answers', r.status, count(m.run_id))
FROM runs r LEFT JOIN messages m ON m.run_id = r.run_id AND m.role = 'assistant'
WHERE r.session_id IS NOT NULL
GROUP BY r.run_id
HAVING count(m.run_id) <> (r.status = 'succeeded')::int
    OR r.status = 'succeeded' AND min(m.payload ->> 'content') <> r.result ->> 'answer'
UNION ALL
SELECT 'one question for each run that was submitted to a session', r.run_id,
       format('%s', count(m.run_id))
FROM runs r LEFT JOIN messages m ON m.run_id = r.run_id AND m.role = 'user'
GROUP BY r.run_id
HAVING count(m.run_id) <> (r.session_id IS NOT NULL AND r.replay_of IS NULL)::int
UNION ALL
SELECT 'a dead letter and its replay name each other', d.run_id,
       format('%s, and %s', d.resolved_by, r.run_id)
FROM (SELECT * FROM runs WHERE resolved_by IS NOT NULL) d
FULL JOIN (SELECT * FROM runs WHERE replay_of IS NOT NULL) r
  ON (r.replay_of, r.run_id) = (d.run_id, d.resolved_by)
WHERE d.run_id IS NULL OR r.run_id IS NULL
UNION ALL
SELECT 'what a key has made is whole', u.run_id, format('key %s', k.key)
FROM idempotency_keys k CROSS JOIN unnest(k.run_ids) AS u(run_id)
WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id)
UNION ALL
SELECT 'a conclusion is remembered of a success only', m.run_id, 'no success'
FROM memories m LEFT JOIN runs r USING (run_id) WHERE r.status IS DISTINCT FROM 'succeeded';

-- Time passes: every time that stands in a row lies so much further back.
CREATE FUNCTION model_pass(p interval) RETURNS void LANGUAGE sql AS $$
    UPDATE runs SET run_at = run_at - p, ready_at = ready_at - p, hinted_at = hinted_at - p,
        deadline = deadline - p, lease_until = lease_until - p,
        cancel_requested_at = cancel_requested_at - p, created_at = created_at - p,
        started_at = started_at - p, finished_at = finished_at - p,
        discarded_at = discarded_at - p;
    UPDATE claims SET started_at = started_at - p, finished_at = finished_at - p;
    UPDATE sessions SET created_at = created_at - p, updated_at = updated_at - p;
    UPDATE workers SET started_at = started_at - p, seen_at = seen_at - p,
        stopped_at = stopped_at - p;
    UPDATE idempotency_keys SET created_at = created_at - p;
    UPDATE duties SET last_success = last_success - p;
$$;

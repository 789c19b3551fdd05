-- What the tests see of each run, and no part of the product does: every change of a row, in
-- order, and what must never be true, noted at the moment in which it is.
--
-- watch_moves     each change of status, claim_no or parked
-- watch_trouble   what a trigger saw that must not be
-- watch_findings  the rules of a finished test: each row is a fault, none is success

CREATE TABLE watch_moves (
    move_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_id     uuid NOT NULL,
    session_id uuid,
    serial     boolean NOT NULL,
    source     text,
    target     text NOT NULL,
    what       text NOT NULL,     -- status | parked | unparked
    claim_no   int NOT NULL,
    attempts   int NOT NULL,
    losses     int NOT NULL,
    worker_id  uuid
);
CREATE INDEX watch_moves_run ON watch_moves (run_id, move_id);

CREATE TABLE watch_trouble (
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    rule   text NOT NULL,
    run_id uuid,
    detail text NOT NULL
);

CREATE FUNCTION watch_born() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watch_moves (run_id, session_id, serial, target, what, claim_no, attempts, losses)
    VALUES (NEW.run_id, NEW.session_id, NEW.serial, NEW.status, 'status', NEW.claim_no,
            NEW.attempts, NEW.losses);
    RETURN NULL;
END $$;

CREATE FUNCTION watch_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watch_moves (run_id, session_id, serial, source, target, what, claim_no, attempts,
                             losses, worker_id)
    VALUES (NEW.run_id, NEW.session_id, NEW.serial, OLD.status, NEW.status,
            CASE WHEN OLD.status <> NEW.status OR OLD.claim_no <> NEW.claim_no THEN 'status'
                 WHEN NEW.parked THEN 'parked' ELSE 'unparked' END,
            NEW.claim_no, NEW.attempts, NEW.losses, coalesce(NEW.worker_id, OLD.worker_id));

    INSERT INTO watch_trouble (rule, run_id, detail)
    SELECT t.rule, NEW.run_id, t.detail FROM (VALUES
        ('a terminal status is left', OLD.status IN ('succeeded', 'failed', 'cancelled'),
         format('%s -> %s', OLD.status, NEW.status)),
        ('claim_no grows by one, at a claim',
         NEW.claim_no <> OLD.claim_no + (OLD.status = 'queued' AND NEW.status = 'running')::int,
         format('%s -> %s at %s -> %s', OLD.claim_no, NEW.claim_no, OLD.status, NEW.status)),
        ('a cancel request is sticky',
         OLD.cancel_requested_at IS NOT NULL AND NEW.status IN ('queued', 'succeeded'),
         format('%s -> %s', OLD.status, NEW.status)),
        ('claimed before it was due',
         NEW.status = 'running' AND OLD.run_at > clock_timestamp(),
         format('run_at %s', OLD.run_at)),
        ('taken back while its lease was good',
         NEW.losses > OLD.losses AND OLD.lease_until > clock_timestamp(),
         format('the lease was good until %s', OLD.lease_until)),
        ('failed at a deadline that has not passed',
         OLD.status = 'queued' AND NEW.status = 'failed' AND OLD.deadline > clock_timestamp(),
         format('the deadline was %s', OLD.deadline)),
        ('two serial runs of a session are running',
         NEW.status = 'running' AND NEW.serial AND EXISTS (
            SELECT 1 FROM runs o WHERE o.session_id = NEW.session_id AND o.serial
            AND o.claim_no > 0 AND o.status = 'running' AND o.run_id <> NEW.run_id),
         format('session %s', NEW.session_id)),
        ('a serial run has overtaken one that was due before it',
         NEW.status = 'running' AND NEW.serial AND OLD.claim_no = 0 AND EXISTS (
            SELECT 1 FROM runs o WHERE o.session_id = NEW.session_id AND o.serial
            AND o.claim_no = 0 AND o.status = 'queued' AND o.seq < NEW.seq
            AND o.run_at <= NEW.started_at),
         format('session %s', NEW.session_id))
    ) AS t(rule, seen, detail) WHERE t.seen;
    RETURN NULL;
END $$;

CREATE TRIGGER watch_born AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION watch_born();
CREATE TRIGGER watch_moved AFTER UPDATE ON runs FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.claim_no <> NEW.claim_no OR OLD.parked <> NEW.parked)
    EXECUTE FUNCTION watch_moved();

-- When each claim ran, by the log: from its move to `running` to the next move of its run.
CREATE VIEW watch_spans AS
SELECT m.run_id, m.session_id, m.serial, m.claim_no, m.at AS begun,
       lead(m.at) OVER (PARTITION BY m.run_id ORDER BY m.move_id) AS ended, m.target
FROM watch_moves m WHERE m.what = 'status';

CREATE VIEW watch_findings AS
SELECT rule, run_id, detail FROM watch_trouble
UNION ALL
SELECT 'every run ends', r.run_id,
       format('%s, parked %s, claim %s, run_at %s', r.status, r.parked, r.claim_no, r.run_at)
FROM runs r WHERE r.status IN ('queued', 'running')
UNION ALL
SELECT 'exactly one terminal move', r.run_id, format('%s of them', count(m.run_id))
FROM runs r LEFT JOIN watch_moves m ON m.run_id = r.run_id AND m.what = 'status'
     AND m.target IN ('succeeded', 'failed', 'cancelled')
WHERE r.status IN ('succeeded', 'failed', 'cancelled')
GROUP BY r.run_id HAVING count(m.run_id) <> 1
UNION ALL
SELECT 'the log has no gap', l.run_id, format('%s, then a move from %s', l.before, l.source)
FROM (SELECT m.run_id, m.source, lag(m.target) OVER (PARTITION BY m.run_id ORDER BY m.move_id)
             AS before FROM watch_moves m) l
WHERE l.before IS DISTINCT FROM l.source
UNION ALL
SELECT 'one assistant message for each success, none else', r.run_id,
       format('%s, %s messages', r.status, count(m.run_id))
FROM runs r LEFT JOIN messages m ON m.run_id = r.run_id AND m.role = 'assistant'
WHERE r.session_id IS NOT NULL
GROUP BY r.run_id HAVING count(m.run_id) <> (r.status = 'succeeded')::int
UNION ALL
SELECT 'one user message for each run of a session', r.run_id, format('%s', count(m.run_id))
FROM runs r LEFT JOIN messages m ON m.run_id = r.run_id AND m.role = 'user'
WHERE r.session_id IS NOT NULL GROUP BY r.run_id HAVING count(m.run_id) <> 1
UNION ALL
SELECT 'claim numbers have no holes', r.run_id,
       format('claim_no %s, %s rows up to %s', r.claim_no, count(c.run_id), max(c.claim_no))
FROM runs r LEFT JOIN claims c ON c.run_id = r.run_id
GROUP BY r.run_id
HAVING count(c.run_id) <> r.claim_no OR coalesce(max(c.claim_no), 0) <> r.claim_no
UNION ALL
SELECT 'every claim is closed', c.run_id, format('claim %s of worker %s', c.claim_no, c.worker_id)
FROM claims c WHERE c.outcome IS NULL
UNION ALL
SELECT 'a claim is closed after the next one had begun', c.run_id, format('claim %s', c.claim_no)
FROM claims c JOIN claims n ON n.run_id = c.run_id AND n.claim_no = c.claim_no + 1
WHERE c.finished_at > n.started_at
UNION ALL
SELECT 'the last claim tells how the run ended, no other does', c.run_id,
       format('claim %s of %s: %s; the run: %s', c.claim_no, r.claim_no, c.outcome, r.status)
FROM claims c JOIN runs r ON r.run_id = c.run_id
WHERE c.outcome IN ('succeeded', 'failed', 'cancelled')
  AND (c.claim_no <> r.claim_no OR c.outcome <> r.status)
UNION ALL
SELECT 'a success is told by its last claim', r.run_id, format('claim %s', r.claim_no)
FROM runs r LEFT JOIN claims c ON c.run_id = r.run_id AND c.claim_no = r.claim_no
WHERE r.status = 'succeeded' AND c.outcome IS DISTINCT FROM 'succeeded'
UNION ALL
-- A release that ends as cancelled is refunded too, and its claim is told as cancelled.
SELECT 'attempts and losses are those of the ledger', r.run_id,
       format('attempts %s, losses %s; the ledger: %s', r.attempts, r.losses,
              string_agg(c.outcome, ', ' ORDER BY c.claim_no))
FROM runs r LEFT JOIN claims c ON c.run_id = r.run_id
WHERE r.status <> 'running' GROUP BY r.run_id
HAVING r.losses <> count(*) FILTER (WHERE c.outcome = 'lost')
    OR count(*) FILTER (WHERE c.outcome NOT IN ('lost', 'release')) - r.attempts
       NOT BETWEEN 0 AND count(*) FILTER (WHERE c.outcome = 'cancelled')
UNION ALL
SELECT 'serial runs of a session overlap', s.run_id,
       format('session %s: it began at %s, before %s', s.session_id, s.begun, s.before)
FROM (SELECT p.*, max(p.ended) OVER (PARTITION BY p.session_id ORDER BY p.begun, p.run_id
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM watch_spans p WHERE p.serial AND p.target = 'running') s
WHERE s.begun < s.before
UNION ALL
SELECT 'what a key has made is whole', u.run_id, format('key %s', k.key)
FROM idempotency_keys k CROSS JOIN unnest(k.run_ids) AS u(run_id)
WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id);

-- Sessions whose parked runs nobody will ever free: true at no moment, also in the middle.
CREATE VIEW watch_forgotten AS
SELECT DISTINCT p.session_id FROM runs p
WHERE p.parked AND NOT EXISTS (
    SELECT 1 FROM runs o WHERE o.session_id = p.session_id AND o.serial
    AND (o.claim_no > 0 AND o.status IN ('queued', 'running')
         OR o.status = 'queued' AND NOT o.parked AND o.run_at <= clock_timestamp()));

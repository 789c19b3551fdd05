-- name: suspects
-- Sessions with parked runs whose turn nobody seems to hold or to wait for: candidates, unlocked.
-- A page by keyset; `last` also where there is no candidate on it, NULL after the last page.
WITH page AS (
    SELECT DISTINCT session_id FROM runs
    WHERE parked AND session_id > %(after)s::uuid ORDER BY session_id LIMIT %(limit)s
)
SELECT (SELECT session_id FROM page ORDER BY session_id DESC LIMIT 1) AS last,
       array(SELECT p.session_id FROM page p
             WHERE NOT EXISTS (
                 SELECT 1 FROM runs h WHERE h.session_id = p.session_id AND h.serial
                 AND h.claim_no > 0 AND h.status IN ('queued', 'running'))
             AND (SELECT n.parked FROM runs n
                  WHERE n.session_id = p.session_id AND n.serial AND n.status = 'queued'
                    AND n.claim_no = 0 AND (n.parked OR n.run_at <= clock_timestamp())
                  ORDER BY n.seq LIMIT 1)) AS candidates

-- name: without_agent
-- Runs that wait because a worker took them that lacks their agent.
SELECT agent, count(*) FROM runs
WHERE status = 'queued' AND error ->> 'type' = 'no_agent'
GROUP BY agent ORDER BY agent

-- name: write
INSERT INTO stats (worker_id, part, workspace_id, agent, minute, succeeded, failed, cancelled,
                   retried, seconds)
SELECT %(worker_id)s::uuid, %(part)s, n.workspace_id, n.agent,
       date_trunc('minute', clock_timestamp()), n.succeeded, n.failed, n.cancelled, n.retried,
       n.seconds
FROM jsonb_to_recordset(%(rows)s::jsonb)
     AS n(workspace_id int, agent text, succeeded int, failed int, cancelled int, retried int,
          seconds double precision)
ON CONFLICT DO NOTHING

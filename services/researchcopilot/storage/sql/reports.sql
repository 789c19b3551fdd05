-- Upkeep runs in the queue `system`, people's runs in all others. A run counts in the period in which
-- it ended, so that each counts in one report.

-- name: clock
SELECT clock_timestamp() AS now, w.name, w.zone, r.report_id, r.period_end, r.language
FROM workspaces w LEFT JOIN LATERAL (
    SELECT report_id, period_end, language FROM reports
    WHERE reports.workspace_id = w.workspace_id ORDER BY period_end DESC LIMIT 1
) r ON true
WHERE w.workspace_id = %(workspace_id)s

-- name: agents
SELECT agent, count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
       percentile_cont(0.5) WITHIN GROUP
           (ORDER BY extract(epoch FROM finished_at - started_at)::float8) AS median_s,
       max(extract(epoch FROM finished_at - started_at)::float8) AS slowest_s
FROM runs
WHERE workspace_id = %(workspace_id)s AND queue <> 'system'
  AND finished_at >= %(start)s AND finished_at < %(end)s
GROUP BY agent ORDER BY count(*) DESC, agent

-- name: totals
SELECT (SELECT count(*) FROM runs
        WHERE workspace_id = %(workspace_id)s AND queue <> 'system'
          AND created_at >= %(start)s AND created_at < %(end)s) AS accepted,
       (SELECT count(*) FROM runs
        WHERE workspace_id = %(workspace_id)s AND queue <> 'system'
          AND created_at < %(end)s AND status IN ('queued', 'running')) AS open,
       (SELECT percentile_cont(0.5) WITHIN GROUP
               (ORDER BY extract(epoch FROM finished_at - started_at)::float8)
        FROM runs
        WHERE workspace_id = %(workspace_id)s AND queue <> 'system'
          AND finished_at >= %(start)s AND finished_at < %(end)s) AS median_s

-- name: upkeep
SELECT agent, count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE status = 'failed') AS failed
FROM runs
WHERE workspace_id = %(workspace_id)s AND queue = 'system'
  AND finished_at >= %(start)s AND finished_at < %(end)s
GROUP BY agent ORDER BY agent

-- name: questions
SELECT left(CASE WHEN jsonb_typeof(input) = 'string' THEN input #>> '{}'
                 ELSE input ->> 'question' END, 200) AS question
FROM runs
WHERE workspace_id = %(workspace_id)s AND queue <> 'system'
  AND created_at >= %(start)s AND created_at < %(end)s
ORDER BY created_at DESC LIMIT %(limit)s

-- name: slowest
-- Of what was asked more than once the slowest alone.
SELECT run_id, agent, status, question, seconds FROM (
    SELECT DISTINCT ON (agent, md5(input::text)) run_id, agent, status,
           left(CASE WHEN jsonb_typeof(input) = 'string' THEN input #>> '{}'
                     ELSE input ->> 'question' END, 300) AS question,
           extract(epoch FROM finished_at - started_at)::float8 AS seconds
    FROM runs
    WHERE workspace_id = %(workspace_id)s AND queue <> 'system' AND started_at IS NOT NULL
      AND finished_at >= %(start)s AND finished_at < %(end)s
    ORDER BY agent, md5(input::text), finished_at - started_at DESC, run_id
) each_one
ORDER BY seconds DESC, run_id LIMIT %(limit)s

-- name: failures
-- By what went wrong, upkeep too; `open`: neither replayed nor discarded.
SELECT fingerprint, agent, error ->> 'type' AS type,
       left((array_agg(error ->> 'message' ORDER BY finished_at DESC))[1], 500) AS message,
       count(*) AS count,
       count(*) FILTER (WHERE resolved_by IS NULL AND discarded_at IS NULL) AS open,
       max(finished_at) AS last_at,
       (array_agg(run_id ORDER BY finished_at DESC))[1] AS last_run_id
FROM runs
WHERE workspace_id = %(workspace_id)s AND status = 'failed'
  AND finished_at >= %(start)s AND finished_at < %(end)s
GROUP BY fingerprint, agent, error ->> 'type'
ORDER BY count(*) DESC, max(finished_at) DESC, fingerprint LIMIT %(limit)s

-- name: documents
SELECT count(*) OVER () AS total, d.document_id, d.name, d.title, d.bytes,
       EXISTS (SELECT 1 FROM documents o
               WHERE o.workspace_id = d.workspace_id AND o.name = d.name
                 AND o.created_at < d.created_at) AS replaces
FROM documents d
WHERE d.workspace_id = %(workspace_id)s
  AND d.created_at >= %(start)s AND d.created_at < %(end)s
ORDER BY d.created_at, d.document_id LIMIT %(limit)s

-- name: digests
-- What was asked more than once stands there once, with its newest digest, in the order in which each
-- was asked first. `total` counts digests, `times` those of this question.
WITH asked AS (
    SELECT coalesce(nullif(payload ->> 'question', ''), run_id::text) AS question,
           count(*)::int AS times, min(message_id) AS first, max(message_id) AS newest
    FROM messages
    WHERE workspace_id = %(workspace_id)s AND role = 'digest'
      AND created_at >= %(start)s AND created_at < %(end)s
    GROUP BY 1
)
SELECT (sum(a.times) OVER ())::int AS total, a.times, m.run_id, m.payload
FROM asked a JOIN messages m ON m.message_id = a.newest
ORDER BY a.first LIMIT %(limit)s

-- name: store
INSERT INTO reports (report_id, workspace_id, run_id, period_start, period_end, zone, language,
                     title, markdown, data)
VALUES (%(report_id)s::uuid, %(workspace_id)s, %(run_id)s::uuid, %(start)s, %(end)s, %(zone)s,
        %(language)s, %(title)s, %(markdown)s, %(data)s::jsonb)
ON CONFLICT DO NOTHING

-- name: standing
-- What stands where a report of this period would stand: this one, or one that has been faster.
SELECT report_id, run_id FROM reports
WHERE workspace_id = %(workspace_id)s
  AND (period_start = %(start)s OR period_end = %(end)s)
ORDER BY period_start LIMIT 1

-- name: list
SELECT report_id, run_id, period_start, period_end, zone, language, title, created_at
FROM reports
WHERE workspace_id = %(workspace_id)s
  AND (%(before)s::timestamptz IS NULL OR period_end < %(before)s)
ORDER BY period_end DESC LIMIT %(limit)s

-- name: get
SELECT report_id, run_id, period_start, period_end, zone, language, title, created_at, markdown,
       data
FROM reports WHERE workspace_id = %(workspace_id)s AND report_id = %(report_id)s::uuid

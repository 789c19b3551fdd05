-- Written by finish_1. Every read is by workspace, and sees none that has expired.

-- name: recall
-- Of equal texts the one whose words fit best, the newest among those: a question that is asked each
-- minute must not fill the list.
SELECT memory_id, run_id, question, text, day FROM (
    SELECT DISTINCT ON (m.text) m.memory_id, m.run_id, m.question, m.text, m.created_at, s.shared,
           to_char(m.created_at AT TIME ZONE w.zone, 'YYYY-MM-DD') AS day
    FROM memories m JOIN workspaces w USING (workspace_id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS shared FROM unnest(%(tokens)s::text[]) AS q(token)
        WHERE q.token = ANY (m.tokens)
    ) s
    WHERE m.workspace_id = %(workspace_id)s AND m.tokens && %(tokens)s::text[]
      AND m.expires_at > statement_timestamp()
    ORDER BY m.text, s.shared DESC, m.created_at DESC, m.memory_id DESC
) found
ORDER BY shared DESC, created_at DESC, memory_id DESC LIMIT %(limit)s

-- name: living
SELECT memory_id FROM memories
WHERE workspace_id = %(workspace_id)s AND memory_id = ANY (%(memory_ids)s::uuid[])
  AND expires_at > statement_timestamp()

-- name: list
SELECT memory_id, run_id, question, text, created_at, expires_at FROM memories
WHERE workspace_id = %(workspace_id)s AND expires_at > statement_timestamp()
  AND (%(at)s::timestamptz IS NULL
       OR (created_at, memory_id) < (%(at)s::timestamptz, %(memory_id)s::uuid))
ORDER BY created_at DESC, memory_id DESC LIMIT %(limit)s

-- name: get
SELECT memory_id, run_id, question, text, created_at, expires_at FROM memories
WHERE workspace_id = %(workspace_id)s AND memory_id = %(memory_id)s::uuid
  AND expires_at > statement_timestamp()

-- name: forget
-- One that has expired is not there any more, also before it is removed.
DELETE FROM memories
WHERE workspace_id = %(workspace_id)s AND memory_id = %(memory_id)s::uuid
  AND expires_at > statement_timestamp()

-- name: remove_expired
-- SKIP LOCKED: what somebody deletes by hand now is gone all the same.
DELETE FROM memories WHERE memory_id IN (
    SELECT memory_id FROM memories WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)

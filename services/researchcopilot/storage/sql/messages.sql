-- name: last
SELECT message_id, session_id, run_id, role, payload, created_at FROM (
    SELECT message_id, session_id, run_id, role, payload, created_at FROM messages
    WHERE session_id = %(session_id)s AND workspace_id = %(workspace_id)s
    ORDER BY message_id DESC LIMIT %(limit)s
) newest ORDER BY message_id

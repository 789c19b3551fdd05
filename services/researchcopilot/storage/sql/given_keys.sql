-- name: add
INSERT INTO api_keys (workspace_id, name, hash, hint)
VALUES (%(workspace_id)s, %(name)s, %(hash)s, %(hint)s)
ON CONFLICT (hash) DO NOTHING

-- name: look
SELECT workspace_id, revoked_at IS NOT NULL AS revoked FROM api_keys WHERE hash = %(hash)s

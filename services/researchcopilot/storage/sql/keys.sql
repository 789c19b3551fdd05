-- name: create
INSERT INTO api_keys (workspace_id, name, hash, hint)
VALUES (%(workspace_id)s, %(name)s, %(hash)s, %(hint)s)
RETURNING key_id, name, hint, created_at, revoked_at

-- name: find
SELECT workspace_id FROM api_keys WHERE hash = %(hash)s AND revoked_at IS NULL

-- name: list
SELECT k.key_id, w.name AS workspace, k.name, k.hint, k.created_at, k.revoked_at
FROM api_keys k JOIN workspaces w USING (workspace_id)
WHERE %(workspace)s::text IS NULL OR w.name = %(workspace)s
ORDER BY k.created_at, k.key_id

-- name: by_ids
SELECT k.key_id, w.name AS workspace, k.name, k.hint, k.created_at, k.revoked_at
FROM api_keys k JOIN workspaces w USING (workspace_id)
WHERE k.key_id = ANY (%(key_ids)s::uuid[])
ORDER BY k.created_at, k.key_id

-- name: match
-- By the whole id or by the hint that `list` shows.
SELECT key_id FROM api_keys WHERE key_id::text = %(which)s OR hint = %(which)s FOR NO KEY UPDATE

-- name: revoke
-- The first revocation counts: a second one does not move the time.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
WHERE key_id = %(key_id)s::uuid

-- name: find_workspace
SELECT workspace_id FROM workspaces WHERE name = %(name)s

-- name: add_workspace
INSERT INTO workspaces (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING

-- name: list
SELECT workspace_id, name, zone, created_at FROM workspaces ORDER BY workspace_id

-- name: set_zone
UPDATE workspaces SET zone = %(zone)s WHERE name = %(name)s
RETURNING workspace_id, name, zone, created_at

-- name: schedules
-- The product's own that keep the workspace's hours.
SELECT schedule_id FROM schedules
WHERE workspace_id = %(workspace_id)s AND system AND name = ANY (%(names)s::text[])
ORDER BY schedule_id

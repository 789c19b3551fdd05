-- name: fence
-- A number that only grows, for whoever has just taken the lock: in Redis it would die with a flush.
INSERT INTO locks (name, fence) VALUES (%(name)s, 1)
ON CONFLICT (name) DO UPDATE SET fence = locks.fence + 1, taken_at = clock_timestamp()
RETURNING fence

-- name: is_mine
-- FOR SHARE: until this transaction ends nobody can take the lock anew.
SELECT fence = %(fence)s FROM locks WHERE name = %(name)s FOR SHARE

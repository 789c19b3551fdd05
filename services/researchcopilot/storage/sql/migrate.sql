-- name: lock
-- Transaction-level, so that it works behind PgBouncer and cannot be left behind.
SELECT pg_advisory_xact_lock(hashtextextended('researchcopilot.migrate', 0))

-- name: patience
-- Of this transaction, for any lock.
SELECT set_config('lock_timeout', %(ms)s, true)

-- name: create_table
CREATE TABLE IF NOT EXISTS schema_migrations (
    name       text PRIMARY KEY,
    sha256     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: has_table
SELECT to_regclass('schema_migrations') IS NOT NULL AS found

-- name: applied
SELECT name, sha256 FROM schema_migrations

-- name: record
INSERT INTO schema_migrations (name, sha256) VALUES (%(name)s, %(sha256)s)
ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = clock_timestamp()

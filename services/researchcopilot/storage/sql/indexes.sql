-- name: latest
SELECT version, format, document_ids, chunks FROM index_versions
WHERE workspace_id = %(workspace_id)s ORDER BY version DESC LIMIT 1

-- name: files
SELECT v.format, f.name, array_agg(f.sha256 ORDER BY f.part)
FROM index_versions v LEFT JOIN index_files f USING (workspace_id, version)
WHERE v.workspace_id = %(workspace_id)s AND v.version = %(version)s
GROUP BY v.format, f.name ORDER BY f.name

-- name: pin
-- The newest version, held so that it cannot be pruned before the pin can be seen. No row: there
-- is none, it was pruned while we waited, the run has a pin, or the run is no longer ours.
WITH newest AS (
    SELECT version FROM index_versions
    WHERE workspace_id = %(workspace_id)s ORDER BY version DESC LIMIT 1 FOR SHARE
)
UPDATE runs SET index_version = newest.version FROM newest
WHERE run_id = %(run_id)s AND claim_no = %(claim_no)s AND worker_id = %(worker_id)s
  AND status = 'running' AND index_version IS NULL
RETURNING index_version

-- name: pinned
SELECT index_version,
       status = 'running' AND claim_no = %(claim_no)s AND worker_id = %(worker_id)s AS mine,
       EXISTS (SELECT FROM index_versions v WHERE v.workspace_id = r.workspace_id) AS any_version
FROM runs r WHERE run_id = %(run_id)s

-- name: touch
-- Which of these blobs are there; wanted just now, so the sweep leaves them alone for a while.
WITH held AS (
    SELECT sha256 FROM index_blobs WHERE sha256 = ANY (%(hashes)s::text[])
    ORDER BY sha256 FOR NO KEY UPDATE
)
UPDATE index_blobs b SET touched_at = clock_timestamp() FROM held WHERE b.sha256 = held.sha256
RETURNING b.sha256

-- name: put
INSERT INTO index_blobs (sha256, data) VALUES (%(sha256)s, %(data)b)
ON CONFLICT (sha256) DO UPDATE SET data = excluded.data, touched_at = clock_timestamp()

-- name: blob
SELECT data FROM index_blobs WHERE sha256 = %(sha256)s

-- name: publish_lock
-- One publisher of a workspace at a time, so that the newest version is known in what follows;
-- 2 is the class of these locks.
SELECT pg_advisory_xact_lock(2, %(workspace_id)s)

-- name: publish
-- Compare and set: only on top of the version that it was built from. The references to
-- index_blobs fail if a blob was swept in the meantime.
WITH published AS (
    INSERT INTO index_versions (workspace_id, version, format, document_ids, chunks)
    SELECT %(workspace_id)s, %(built_from)s::int + 1, %(format)s, %(document_ids)s::uuid[],
           %(chunks)s
    WHERE %(built_from)s = coalesce((SELECT max(version) FROM index_versions
                                     WHERE workspace_id = %(workspace_id)s), 0)
    ON CONFLICT DO NOTHING
    RETURNING version
)
INSERT INTO index_files (workspace_id, version, name, part, sha256)
SELECT %(workspace_id)s, published.version, file.name, file.part, file.sha256
FROM published, unnest(%(names)s::text[], %(parts)s::int[], %(hashes)s::text[])
                AS file(name, part, sha256)
RETURNING version

-- name: old_versions
-- Older than the newest few and held by nobody: a run that pins one has it FOR SHARE.
SELECT version FROM index_versions
WHERE workspace_id = %(workspace_id)s
  AND version < (SELECT min(version) FROM (
          SELECT version FROM index_versions WHERE workspace_id = %(workspace_id)s
          ORDER BY version DESC LIMIT %(keep)s) newest)
ORDER BY version FOR UPDATE SKIP LOCKED

-- name: prune_versions
-- A statement of its own, after the lock: only its snapshot shows a pin that was committed between
-- the snapshot of the one above and its lock.
DELETE FROM index_versions v
WHERE workspace_id = %(workspace_id)s AND version = ANY (%(versions)s::int[])
  AND NOT EXISTS (SELECT FROM runs r WHERE r.workspace_id = v.workspace_id
                  AND r.index_version = v.version AND r.status IN ('queued', 'running'))
RETURNING version

-- name: idle_blobs
-- No version names them and no builder has wanted them for a while. A publisher that is about to
-- name one holds it (its reference takes FOR KEY SHARE), and it is skipped.
SELECT sha256 FROM index_blobs b
WHERE touched_at < statement_timestamp() - make_interval(secs => %(idle_s)s)
  AND NOT EXISTS (SELECT FROM index_files f WHERE f.sha256 = b.sha256)
ORDER BY sha256 LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: sweep_blobs
-- Asked again after the lock, like prune_versions.
DELETE FROM index_blobs b
WHERE sha256 = ANY (%(hashes)s::text[])
  AND NOT EXISTS (SELECT FROM index_files f WHERE f.sha256 = b.sha256)
RETURNING sha256

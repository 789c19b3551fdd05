-- name: lock
-- One writer of a workspace's corpus at a time; 1 is the class of these locks.
SELECT pg_advisory_xact_lock(1, %(workspace_id)s)

-- name: active_like
-- What a batch can meet: documents of its names and documents with its texts.
SELECT document_id, name, sha256 FROM documents
WHERE workspace_id = %(workspace_id)s AND retired_at IS NULL
  AND (name = ANY (%(names)s::text[]) OR sha256 = ANY (%(hashes)s::text[]))

-- name: retire
UPDATE documents SET retired_at = clock_timestamp()
WHERE document_id = ANY (%(document_ids)s::uuid[]) AND retired_at IS NULL

-- name: insert
INSERT INTO documents (document_id, workspace_id, name, title, media_type, sha256, body, bytes)
VALUES (%(document_id)s, %(workspace_id)s, %(name)s, %(title)s, %(media_type)s, %(sha256)s,
        %(body)s, %(bytes)s)

-- name: list
SELECT document_id, name, title, media_type, sha256, bytes, created_at FROM documents
WHERE workspace_id = %(workspace_id)s AND retired_at IS NULL
  AND (%(after)s::text IS NULL OR name > %(after)s)
ORDER BY name LIMIT %(limit)s

-- name: get
-- Also one that was replaced: an answer may still cite it.
SELECT document_id, name, title, media_type, sha256, bytes, created_at, body, retired_at
FROM documents WHERE workspace_id = %(workspace_id)s AND document_id = %(document_id)s

-- name: active
SELECT document_id, bytes FROM documents
WHERE workspace_id = %(workspace_id)s AND retired_at IS NULL ORDER BY document_id

-- name: by_ids
SELECT document_id, name, title, media_type, sha256, bytes, created_at, body, retired_at
FROM documents
WHERE workspace_id = %(workspace_id)s AND document_id = ANY (%(document_ids)s::uuid[])
ORDER BY document_id

-- Which process of which Pod a worker is, so that what Kubernetes says of a Pod finds its runs.

ALTER TABLE workers
    ADD COLUMN pod_namespace text,
    -- By the clock of its node, and so comparable with what the kubelet says of the container's
    -- start. Nothing but "which of the processes that this Pod has had" is decided by it.
    ADD COLUMN process_started_at timestamptz;
CREATE INDEX workers_pod ON workers (pod_uid) WHERE pod_uid IS NOT NULL;

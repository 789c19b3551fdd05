-- What the janitor looks for each minute, so that it need not walk a million queued runs.

-- Sessions that wait for a turn: the safety net asks whether somebody will give it to them.
CREATE INDEX runs_parked ON runs (session_id) WHERE parked;
-- Runs that a worker gave back because their agent is not installed there.
CREATE INDEX runs_no_agent ON runs (agent)
    WHERE status = 'queued' AND error ->> 'type' = 'no_agent';

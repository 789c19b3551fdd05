-- The index of deadlines is for questions about deadlines alone. Its condition was `queued` and
-- nothing else, so that it also offered itself for "is anybody before this one in its session?".
-- While it is empty, reading all of it costs less than one step into another index; a plan that was
-- made then stays with its connection, and reads everything that is queued for each claim.

LOCK TABLE runs IN ACCESS EXCLUSIVE MODE;   -- at once: a lock that grows can deadlock
CREATE INDEX runs_overdue ON runs (deadline) WHERE status = 'queued' AND deadline IS NOT NULL;
DROP INDEX runs_deadline;

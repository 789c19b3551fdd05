-- What an agent says of its retries: the api gives it to runs whose request names no max_attempts.

ALTER TABLE agents
    ADD COLUMN max_attempts int NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 100);

"""The worker: take → claim → execute → finish → ack, under a lease that a thread renews.

`take` fills free slots, `execute` runs one claim and judges how it ended, `finish` commits in
groups, `handback` clears the Redis lists, `renewal` keeps the leases and `told` hears of
cancellations, `main` wires and drains. A call of an agent is a task or a thread (`calls`), or a
process of its own (`isolated_call` here, `child` there, `frames` between them).
A worker never decides a run's status by itself: every move is guarded in Postgres by
(run_id, claim_no, worker_id), and whatever it says too late is dropped and counted.
"""

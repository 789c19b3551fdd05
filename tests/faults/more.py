"""Faults beyond the 25 that are worth a test each: of others, and of what we found in ourselves.

The same rules: one test, one line.
"""

from tests.faults.fault import Fault

OURS = "services/researchcopilot/"
FUNCTIONS = OURS + "storage/migrations/functions/"

MORE = (
    Fault(
        26,
        "a result of megabytes ends up in every list",
        "open-wearables#1460, bull#1357",
        "sizes are limited at the door, with a sentence that says what to do",
        "tests/services/test_worker_agents.py::test_ten_megabytes_are_refused_with_size_and_limit",
        OURS + "worker/result.py",
        "if size > limit:",
        "if False:",
    ),
    Fault(
        27,
        "a late end overwrites a cancellation",
        "dagster#3323, term-llm#918",
        "a request to cancel is sticky: whatever the worker says then, it is cancelled",
        "tests/storage/test_moves.py::test_a_cancel_request_is_sticky[succeeded]",
        FUNCTIONS + "finish_1.sql",
        "WHEN l.cancel_requested_at IS NOT NULL AND n.kind <> 'failed' THEN 'cancelled'",
    ),
    Fault(
        28,
        "what was taken back returns as one herd",
        "PostHog#71361",
        "the first few go to the head at once, the rest over some seconds",
        "tests/services/test_janitor_parked.py::test_a_thousand_do_not_come_back_in_one_instant",
        OURS + "storage/returning.py",
        "await self._push(hints[:AT_ONCE])",
        "await self._push(hints)",
    ),
    Fault(
        29,
        "the publish after a commit is lost with the broker",
        "django-tasks#189",
        "a probe finds what is queued and stands in no list",
        "tests/services/test_janitor_probes.py::test_an_entry_that_is_gone_is_found",
        OURS + "janitor/probes.py",
        "await redis.push_head(queue, entries)",
        "pass",
    ),
    Fault(
        30,
        "a worker that came back late ends another claim of its run",
        "bullmq#3056",
        "a finish names its claim, and holds for no other",
        "tests/storage/test_protocol.py::test_a_worker_ends_its_lost_claim_and_its_new_one_at_once",
        FUNCTIONS + "finish_1.sql",
        "FROM named n JOIN locked l ON l.run_id = n.run_id AND l.claim_no = n.claim_no",
        "FROM named n JOIN locked l ON l.run_id = n.run_id",
    ),
    Fault(
        31,
        "the probe says alive, and nothing is taken",
        "open-wearables#1543, celery#4079",
        "/livez fails when no take has come back for a while",
        "tests/services/test_worker_health.py::test_a_take_that_hangs_is_told",
        OURS + "worker/main.py",
        'service.health.live[f"take {taker.queue}"] = partial(_stuck, taker, stale)',
        "pass",
    ),
    Fault(
        32,
        "a scheduler whose clock is ahead fires too early",
        "oban-py#17",
        "a plan with a tick that is not due by the database's clock does nothing",
        "tests/storage/test_schedules.py::test_no_plan_fires_before_its_time",
        FUNCTIONS + "fire_1.sql",
        "WHERE k.tick > t));",
        "WHERE false));",
        red="CheckViolation",
    ),
    Fault(
        33,
        "kill -9 of a worker leaves what its agents have started",
        "found here",
        "a process in the group of the run outlives its first one, and ends the group",
        "tests/services/test_worker_isolation.py"
        "::test_what_it_has_started_dies_with_its_worker_too",
        OURS + "worker/child.py",
        "keep_watch(os.getpid(), (end, dump))",
    ),
    Fault(
        34,
        "orphans of agents fill the process table of a container",
        "found here",
        "whatever the group of a run has left is waited for",
        "tests/services/test_worker_isolation.py"
        "::test_what_it_has_left_behind_is_no_zombie_of_process_1",
        OURS + "worker/group.py",
        "self._reap()",
    ),
    Fault(
        35,
        "a stop of the api throws away pushes under way",
        "found here",
        "it waits for what has committed, and the janitor finds the rest",
        "tests/services/test_api_app.py::test_a_stop_pushes_what_was_committed",
        OURS + "api/main.py",
        "await services.submitter.close()",
    ),
    Fault(
        36,
        "work that an async agent left in the pool is nobody's",
        "found here",
        "works of the pool are known by run; those that outlive it are counted as lost",
        "tests/services/test_worker_lost_threads.py"
        "::test_work_that_an_async_agent_has_left_in_the_pool_is_counted_too",
        OURS + "worker/execute.py",
        "loop.call_later(GRACE_S, self._look_after, works)",
        "pass",
    ),
    Fault(
        37,
        "lost threads take the pool from all other runs",
        "good_job#523",
        "the pool is larger by as many threads as may be lost",
        "tests/services/test_worker_lost_threads.py"
        "::test_lost_threads_of_the_pool_leave_as_many_for_others",
        OURS + "worker/pool.py",
        'super().__init__(min(32, (os.cpu_count() or 1) + 4) + most_lost, "pool")',
        'super().__init__(min(32, (os.cpu_count() or 1) + 4), "pool")',
    ),
)

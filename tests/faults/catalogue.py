"""The 25 faults of other queues that taught us most, and for each the one test and the one line.

`FAULTS` is all that there is to read: `python -m tests.faults --list` prints it, `make mutate`
proves it, `tests/house/test_faults.py` keeps it true. A fault that several tests could tell has the
one that is nearest to what happened; numbers above 25 are in `more`.
"""

from tests.faults.fault import Fault
from tests.faults.more import MORE

OURS = "services/researchcopilot/"
WORKER, STORAGE = OURS + "worker/", OURS + "storage/"
FUNCTIONS = STORAGE + "migrations/functions/"

_LOST_OR_TWICE = (
    Fault(
        1,
        "a run longer than its lease runs twice",
        "celery/kombu#337, celery#2599",
        "a thread renews each third of the lease, however long the run",
        "tests/faults/test_leases.py::test_01_a_run_longer_than_its_lease_is_not_run_twice",
        WORKER + "renewal.py",
        "self._renew()",
    ),
    Fault(
        2,
        "SIGTERM between take and claim loses the entry",
        "celery/kombu#1405, kombu#305",
        "the reply of the last BLMOVE is read, and what it brought goes back to the head",
        "tests/services/test_worker_drain.py"
        "::test_runs_end_while_it_drains_and_nothing_more_is_taken",
        WORKER + "take.py",
        "self._give_back([*by_run.values(), *probes])",
    ),
    Fault(
        3,
        "the reliable pop is off with two queues",
        "rq#1716",
        "each queue is taken from by a move into a list of this worker, there is no other way",
        "tests/services/test_worker_deaths.py::test_03_kill_9_loses_nothing_of_any_of_its_queues",
        STORAGE + "lua/take.lua",
        "local entry = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')",
        "local entry = redis.call('LPOP', KEYS[1])",
    ),
    Fault(
        4,
        "the janitor takes away what was just popped",
        "tobymao/saq#124, #277, rq#2061",
        "only lists of workers that are dead by their row are moved",
        "tests/faults/test_entries.py"
        "::test_04_what_was_just_taken_and_is_not_claimed_yet_is_left_alone",
        STORAGE + "sql/workers.sql",
        "WHERE (stopped_at IS NOT NULL OR seen_at < statement_timestamp()"
        " - make_interval(secs => %(stale_s)s))",
    ),
    Fault(
        5,
        "running for ever, since one of list and lease is missing",
        "hibiken/asynq#1144, #1051",
        "a duty for each pair of row, list and lease",
        "tests/faults/test_entries.py"
        "::test_05_whatever_is_missing_of_row_list_and_lease_each_run_ends_once",
        STORAGE + "taking_back.py",
        "moved = await moves.reclaim(db, limit=BATCH, max_losses=max_losses, gone=gone)",
        "moved = Moved(())",
    ),
    Fault(
        6,
        "a Pod of the same name keeps the dead one alive",
        "procrastinate#1518, oban#862",
        "a worker's id is made at its start; leases name runs, not workers",
        "tests/services/test_worker_deaths.py"
        "::test_06_a_pod_that_comes_back_under_its_name_is_another_worker",
        WORKER + "main.py",
        "worker_id=new_id(),",
        'worker_id="00000000-0000-7000-8000-000000000001",',
    ),
    Fault(
        7,
        "a rescuer that goes by age re-runs healthy jobs",
        "hexpm#1825, river#682, river#1258",
        "the lease is looked at again behind the locks",
        "tests/faults/test_leases.py"
        "::test_07_a_run_that_is_renewed_while_it_is_being_taken_back_stays",
        FUNCTIONS + "reclaim_2.sql",
        "WHEN p_workers IS NULL THEN r.lease_until < t ELSE r.worker_id = ANY (p_workers) END",
        "WHEN p_workers IS NULL THEN true ELSE r.worker_id = ANY (p_workers) END",
    ),
    Fault(
        8,
        "an agent that blocks the loop stops the heartbeat",
        "bullmq#3056, #3183, dramatiq#692",
        "leases are renewed from a thread and a connection of its own",
        "tests/services/test_worker_life.py::test_the_lease_is_kept_while_an_agent_blocks_the_loop",
        WORKER + "worker.py",
        "self.renewal.start()",
    ),
    Fault(
        9,
        "a lock whose holder was killed is never free again",
        "taskiq-redis#131",
        "a lock is set with its end in the same command; what Postgres holds ends with the session",
        "tests/storage/test_lock.py::test_it_always_runs_out_by_itself",
        STORAGE + "lock.py",
        "held.key, held.token, nx=True, px=max(1, int(held.ttl_s * 1000))",
        "held.key, held.token, nx=True",
    ),
    Fault(
        10,
        "jobs and locks are evicted under memory pressure",
        "bullmq#1046, #1443, #2215",
        "a warning at the start; the rows outlive every key",
        "tests/faults/test_entries.py"
        "::test_10_keys_that_redis_throws_away_cost_no_run_and_the_policy_is_told",
        STORAGE + "checks.py",
        'if facts.eviction not in (None, "noeviction"):',
        "if False:",
    ),
    Fault(
        11,
        "entries that come back after a failover run again",
        "redis/redis#5433",
        "the claim gives a verdict by the row: whatever is terminal is gone",
        "tests/services/test_worker_take.py::test_what_is_gone_is_acknowledged_and_not_executed",
        FUNCTIONS + "claim_1.sql",
        "WHEN l.status <> 'queued' OR l.deadline <= t THEN 'gone'",
    ),
    Fault(
        12,
        "after a blip of Redis the worker lives and takes nothing",
        "celery#8030, #8082, #10205",
        "the loop that takes outlives every error; /livez is the time since the last take",
        "tests/services/test_worker_trouble.py::test_both_restart_under_a_worker_process",
        WORKER + "take.py",
        "await self._trouble(next(self._delays))",
        "return",
    ),
)

_DEATHS = (
    Fault(
        13,
        "what kills its worker is redelivered for ever",
        "celery#1628, secator#1199",
        "a death is counted in the row; the third ends the run as worker_lost",
        "tests/storage/test_moves.py::test_reclaim_counts_losses_until_worker_lost",
        FUNCTIONS + "reclaim_2.sql",
        "WHEN r.losses + 1 >= p_max_losses THEN 'failed'",
    ),
    Fault(
        14,
        "a poison pill takes its neighbours along, worker after worker",
        "sidekiq#4633, #5300, #5831",
        "after two losses a run has a process of its own, whatever the setting",
        "tests/services/test_worker_isolation.py"
        "::test_after_two_losses_a_run_is_isolated_whatever_the_setting",
        WORKER + "isolation.py",
        "elif claim.losses >= LOSSES:",
        "elif False:",
    ),
    Fault(
        15,
        "a killed worker leaves its jobs running for hours",
        "procrastinate#307, rq#507, arq#343",
        "leases are seconds long, and swept as often",
        "tests/services/test_worker_trouble.py::test_kill_9_costs_a_lease_and_nothing_else",
        OURS + "janitor/main.py",
        '("leases", recovery.sweep_s, leases.sweep),',
    ),
    Fault(
        16,
        "a deploy cancels what runs, or lets it run again",
        "celery#3802, #8417, arq#192, rq#1516",
        "what does not end while it drains is handed back, and its attempt is not charged",
        "tests/services/test_worker_drain.py"
        "::test_what_does_not_end_in_time_is_released_and_goes_on_elsewhere",
        WORKER + "worker.py",
        "hand.end(Ending.RELEASED)",
        "pass",
    ),
)

_CLOCK = (
    Fault(
        17,
        "two schedulers, since a lock is renewed that is another's",
        "sibson/redbeat#208, #127, #230",
        "renewing compares the token in the same script",
        "tests/storage/test_lock.py::test_only_the_holder_renews",
        STORAGE + "lua/lock_renew.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end",
    ),
    Fault(
        18,
        "the lock ends while its holder still enqueues",
        "rq#1354, #2338, rq-scheduler#312",
        "a plan holds only for the row that it was made from",
        "tests/storage/test_schedules.py::test_a_plan_that_comes_late_sets_nothing_back",
        FUNCTIONS + "fire_1.sql",
        "WHERE s.next_tick = p.expected AND s.revision = p.revision",
    ),
    Fault(
        19,
        "daylight saving: a tick is skipped, late or twice",
        "celery#10107, #9653, #6438, #1604",
        "ticks are moments, worked out from the zone's rules",
        "tests/unit/test_cron.py"
        "::test_a_local_time_that_does_not_exist_fires_once_right_after_the_gap",
        OURS + "core/cron.py",
        "return _first_change(zone, before, found) or found",
        "return found",
    ),
    Fault(
        20,
        "a tick fires twice, since its mark went with its job",
        "arq#196, oban-py#17, good_job#1543, river#791",
        "a tick is a row with the time of the rule, kept long after its run",
        "tests/storage/test_schedules.py::test_the_unique_key_holds_when_everything_else_fails",
        STORAGE + "migrations/pre/0005_schedules.sql",
        "PRIMARY KEY (schedule_id, tick),",
    ),
)

_SCALE = (
    Fault(
        21,
        "workers hoard what others could do",
        "mitodl/ol-infrastructure#5598",
        "never more is taken than there are free slots",
        "tests/services/test_worker_take.py::test_never_more_than_there_are_free_slots",
        WORKER + "worker.py",
        "slots.use()",
    ),
    Fault(
        22,
        "scaled down while busy, since only what waits is counted",
        "kedacore/keda#157, #2900, #6719",
        "wanted workers are counted from waiting and running",
        "tests/storage/test_depths.py"
        "::test_the_queue_that_needs_most_workers_decides[queues2-loads2-1]",
        OURS + "janitor/depths.py",
        '"desired_workers": max(ceil(sum(mine[queue]) / slots)'
        " for queue, slots in queues.items()),",
        '"desired_workers": max(ceil(mine[queue][0] / slots) for queue, slots in queues.items()),',
    ),
    Fault(
        23,
        "the chart and an autoscaler fight over replicas",
        "temporal-worker-controller#320",
        "replicas are rendered only if somebody asks for them, and never beside an autoscaler",
        "tests/chart/test_workers.py::test_replicas_are_nobody_s_unless_asked_for",
        "charts/researchcopilot/templates/worker/_pool.tpl",
        '{{- if and (hasKey .c "replicas") (not (kindIs "invalid" .c.replicas))'
        ' (not (dig "autoscaling" "enabled" false .c)) -}}',
        '{{- if not (dig "autoscaling" "enabled" false .c) -}}',
    ),
    Fault(
        24,
        "metrics tell of what is long gone",
        "celery-exporter#137, #263, #382",
        "gauges come from the servers at each look; what can no longer be read has no series",
        "tests/storage/test_depths.py::test_what_cannot_be_read_is_taken_away",
        OURS + "janitor/depths.py",
        "gauge.remove(gone)",
        "pass",
    ),
    Fault(
        25,
        "NUL in a result or an error breaks the last write",
        "firecrawl#4113, windmill#10274, unstract#2289",
        "every text is cleaned and cut before it is written",
        "tests/faults/test_words.py"
        "::test_25_text_that_postgres_refuses_ends_its_run_and_is_kept_clean",
        WORKER + "result.py",
        "text = dumps(clean_json(result))",
        "pass",
    ),
)

FAULTS = (*_LOST_OR_TWICE, *_DEATHS, *_CLOCK, *_SCALE, *MORE)

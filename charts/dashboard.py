"""The Grafana dashboard as data: rows of panels, each a query or several. `generate.py` writes it.

Gauges of the whole (queue depths, dead letters, Redis) come from the janitor and are read by `max`:
two janitors tell the same. What each process counts for itself is summed.
"""

from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'namespace=~"$namespace",release=~"$release"'
P = "researchcopilot_"


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` is expression → legend; `how` is Grafana's panel type."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    how: str = "timeseries"
    width: int = 8
    stacked: bool = False
    text: str = ""


# Of what was taken back: what the janitor saw, and what the operator was told.
SEEN = 'reason=~"left|silent|forgotten"'
TOLD = 'reason!~"left|silent|forgotten"'


def of(metric: str, labels: str = "") -> str:
    """`researchcopilot_<metric>{of this release}`"""
    return f"{P}{metric}{{{HERE}{',' if labels else ''}{labels}}}"


def by_queue(metric: str) -> str:
    return f"max by (queue) ({of(metric, QUEUE)})"


def rate(metric: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({of(metric, labels)}[$__rate_interval]))"


def total(metric: str, labels: str = "") -> str:
    return f"sum(rate({of(metric, labels)}[$__rate_interval]))"


def total_or_0(metric: str) -> str:
    """For a series that is born when it first happens, and may never."""
    return f"{total(metric)} or vector(0)"


def quantile(q: float, metric: str, by: str = "", labels: str = "") -> str:
    return (
        f"histogram_quantile({q}, {rate(metric + '_bucket', f'le,{by}' if by else 'le', labels)})"
    )


def _mean(histogram: str, by: str) -> str:
    return f"{rate(histogram + '_sum', by)} / {rate(histogram + '_count', by)}"


def stat(title: str, query: str, unit: str = "short", text: str = "") -> Panel:
    return Panel(title, {query: ""}, unit, "stat", 3, text=text)


QUEUE = 'queue=~"$queue"'
BUSY = 'state="busy"'
SUCCEEDED, FAILED, STALE = 'outcome="succeeded"', 'outcome="failed"', 'outcome="stale"'
CLAIMED = 'verdict="claimed"'
PODS = 'namespace=~"$namespace",pod=~"$release.*"'
RESTARTS = f"kube_pod_container_status_restarts_total{{{PODS}}}"
KILLED = f'kube_pod_container_status_last_terminated_reason{{{PODS},reason="OOMKilled"}}'
POOLS = '{namespace=~"$namespace",deployment=~"$release.*-worker-.*"}'
ENDED = 'outcome=~"succeeded|failed|cancelled"'
_failed = of("runs_finished_total", FAILED)
_done = "sum(rate({}[1h]))"

ROWS: dict[str, list[Panel]] = {
    "At a glance": [
        stat("Waiting", f"sum({by_queue('queue_waiting')})", text="due, and no worker yet"),
        stat("Running", f"sum({by_queue('queue_running')})"),
        stat("Oldest waits", f"max({by_queue('queue_oldest_waiting_seconds')})", "s"),
        stat(
            "Succeeded",
            f"{_done.format(of('runs_finished_total', SUCCEEDED))}"
            f" / {_done.format(of('runs_finished_total', ENDED))}",
            "percentunit",
            "of the runs that ended within an hour",
        ),
        stat(
            "Wait, 95 %",
            f"histogram_quantile(0.95, sum by (le) (rate({of('run_wait_seconds_bucket')}[1h])))",
            "s",
        ),
        stat("Workers", f"max({by_queue('queue_workers')})"),
        stat("Taken back", f"sum(increase({of('reclaims_total')}[1h]))", text="within an hour"),
        stat("Dead letters", f"max({of('dead_letters')})"),
    ],
    "Queues": [
        Panel(
            "Depth by state",
            {
                f"sum({by_queue('queue_waiting')})": "waiting",
                f"sum({by_queue('queue_running')})": "running",
                f"sum({by_queue('queue_delayed')})": "delayed",
            },
            stacked=True,
        ),
        Panel("Waiting by queue", {by_queue("queue_waiting"): "{{queue}}"}),
        Panel("Oldest waiting", {by_queue("queue_oldest_waiting_seconds"): "{{queue}}"}, "s"),
        Panel(
            "In and out",
            {
                total("runs_submitted_total", QUEUE): "accepted",
                total("claim_verdicts_total", CLAIMED): "claimed",
                total("runs_finished_total", ENDED): "ended",
            },
            "ops",
        ),
        Panel(
            "In the hands of workers",
            {by_queue("queue_processing"): "{{queue}}"},
            text="entries of the processing lists; running is what Postgres says",
        ),
        Panel("Load", {by_queue("queue_load"): "{{queue}}"}, text="waiting + running"),
        Panel("Next delayed run", {by_queue("queue_next_due_seconds"): "{{queue}}"}, "s"),
    ],
    "Runs": [
        Panel("Outcomes", {rate("runs_finished_total", "outcome"): "{{outcome}}"}, "ops"),
        Panel("Duration", {rate("run_seconds_bucket", "le"): "{{le}}"}, "s", "heatmap"),
        Panel(
            "Wait until claimed",
            {quantile(q, "run_wait_seconds"): f"{q * 100:g} %" for q in (0.5, 0.95, 0.99)},
            "s",
        ),
        Panel(
            "Duration by agent, 95 %", {quantile(0.95, "run_seconds", "agent"): "{{agent}}"}, "s"
        ),
        Panel(
            "Retries by reason",
            {rate("retries_total", "agent,reason"): "{{agent}} {{reason}}"},
            "ops",
        ),
        Panel(
            "Attempts until the end, 95 %",
            {quantile(0.95, "run_attempts", "agent"): "{{agent}}"},
        ),
        Panel("Dead letters", {f"max({of('dead_letters')})": "dead letters"}),
        Panel(
            "Ended by their deadline", {rate("runs_expired_total", "reason"): "{{reason}}"}, "ops"
        ),
        Panel("Asked to stop", {rate("cancellations_told_total", "by"): "by {{by}}"}, "ops"),
        Panel(
            "Agents that misbehave",
            {
                total("agents_abandoned_total"): "went on after they were told to stop",
                total_or_0("agents_crashed_total"): "crashed",
                total("events_given_up_total"): "events that could not be stored",
            },
            "ops",
        ),
    ],
    "Workers": [
        Panel(
            "Slots",
            {
                f"sum by (queue, state) ({of('worker_slots')})": "{{queue}} {{state}}",
            },
            stacked=True,
        ),
        Panel(
            "Busy by Pod",
            {f"sum by (pod, instance) ({of('worker_slots', BUSY)})": "{{pod}}"},
        ),
        Panel("Live workers", {by_queue("queue_workers"): "{{queue}}"}),
        Panel("Renewals", {rate("renewals_total", "verdict"): "{{verdict}}"}, "ops"),
        Panel(
            "Members of a group",
            {_mean("group_size", "group"): "{{group}}"},
        ),
        Panel(
            "Restarts and memory kills",
            {
                f"sum by (pod) (increase({RESTARTS}[1h]))": "{{pod}}",
                f"sum by (pod) ({KILLED})": "{{pod}} was killed for its memory",
            },
            text="of kube-state-metrics",
        ),
        Panel(
            "Replicas",
            {
                f"sum by (deployment) (kube_deployment_spec_replicas{POOLS})": "{{deployment}}",
                f"sum by (deployment) (kube_deployment_status_replicas_ready{POOLS})": (
                    "{{deployment}} ready"
                ),
            },
            text="of kube-state-metrics",
        ),
        Panel("Lost threads", {f"sum by (pod) ({of('lost_threads')})": "{{pod}}"}),
        Panel(
            "Runs in a process of their own",
            {total_or_0("runs_isolated_total"): "runs"},
            "ops",
        ),
    ],
    "Recovery": [
        Panel(
            "Taken back from dead workers",
            {rate("reclaims_total", "reason,status"): "{{reason}} {{status}}"},
            "ops",
        ),
        Panel(
            "Recovery: no sign of life until taken back",
            {quantile(q, "recovery_seconds", labels=SEEN): f"{q * 100:g} %" for q in (0.5, 0.95)},
            "s",
        ),
        Panel(
            "Recovery: taken back until claimed",
            {quantile(q, "reclaimed_wait_seconds"): f"{q * 100:g} %" for q in (0.5, 0.95)},
            "s",
        ),
        Panel(
            "What guards refused",
            {
                total("runs_finished_total", STALE): "stale results",
                rate("claim_verdicts_total", "verdict", 'verdict!="claimed"'): "{{verdict}}",
            },
            "ops",
        ),
        Panel(
            "Redis mended",
            {
                total("lost_pushes_total"): "lost pushes",
                total("redis_rebuilds_total"): "rebuilds",
            },
            "ops",
        ),
        Panel(
            "Entries found again",
            {
                total("entries_found_total"): "by the worker that has them",
                rate("dead_entries_total", "verdict"): "of dead workers: {{verdict}}",
            },
            "ops",
        ),
        Panel(
            "On the way back",
            {f"sum({of('reclaimed_waiting')})": "runs"},
            text="taken back, and pushed a few at a time",
        ),
    ],
    "Operator": [
        Panel(
            "Since the API server answered",
            {f"max by (kind) ({of('operator_watch_age_seconds')})": "{{kind}}"},
            "s",
        ),
        Panel(
            "Deaths told by Pods", {rate("operator_signals_total", "reason"): "{{reason}}"}, "ops"
        ),
        Panel(
            "From a signal to the run taken back",
            {quantile(q, "recovery_seconds", labels=TOLD): f"{q * 100:g} %" for q in (0.5, 0.99)},
            "s",
        ),
        Panel(
            "Objects",
            {f"max by (kind) ({of('operator_objects')})": "{{kind}}"},
        ),
        Panel(
            "What it writes",
            {
                rate("operator_status_writes_total", "kind, outcome"): "{{kind}} {{outcome}}",
                total("operator_cost_writes_total"): "costs",
            },
            "ops",
        ),
        Panel(
            "What did not succeed",
            {
                rate("operator_failures_total", "what"): "{{what}}",
                total("operator_restarts_total"): "watching",
                total("operator_signals_dropped_total"): "dropped",
            },
            "ops",
        ),
        Panel("Comparisons", {rate("operator_resyncs_total", "kind"): "{{kind}}"}, "ops"),
    ],
    "Clock and duties": [
        Panel(
            "Since a duty succeeded",
            {f"time() - max by (duty) ({of('duty_last_success_timestamp_seconds')})": "{{duty}}"},
            "s",
        ),
        Panel("Failures of duties", {rate("duty_failures_total", "duty"): "{{duty}}"}, "ops"),
        Panel(
            "Delayed runs: late by",
            {quantile(q, "delay_lateness_seconds"): f"{q * 100:g} %" for q in (0.5, 0.99)},
            "s",
        ),
        Panel("Delayed runs: became due", {rate("due_moved_total", "queue"): "{{queue}}"}, "ops"),
        Panel("Ticks", {rate("ticks_total", "outcome"): "{{outcome}}"}, "ops"),
        Panel("Ticks: late by, 99 %", {quantile(0.99, "tick_lateness_seconds"): "99 %"}, "s"),
        Panel("Rounds of ticks, by lock", {rate("tick_rounds_total", "lock"): "{{lock}}"}, "ops"),
        Panel("Next tick", {f"min({of('next_tick_seconds')})": "until any schedule's"}, "s"),
        Panel(
            "Locks",
            {
                rate("lock_acquisitions_total", "lock"): "{{lock}}",
                rate("lock_losses_total", "lock"): "{{lock}} lost while held",
            },
            "ops",
        ),
        Panel(
            "What must stay 0",
            {
                f"sum({of('parked_forgotten_total')})": "parked runs that were forgotten",
                f"sum({of('schedules_halted_total')})": "schedules that cannot be fired",
            },
        ),
        Panel("Index version", {f"max by (workspace) ({of('index_version')})": "{{workspace}}"}),
        Panel("Old rows removed", {total_or_0("pruned_rows_total"): "rows"}, "ops"),
        Panel(
            "Index age", {f"max by (workspace) ({of('index_age_seconds')})": "{{workspace}}"}, "s"
        ),
    ],
    "Postgres and Redis": [
        Panel(
            "Database connections",
            {
                f"sum by (part, state) ({of('database_connections')})": "{{part}} {{state}}",
                f"sum by (part) ({of('database_connections_limit')})": "{{part}} at the most",
            },
        ),
        Panel(
            "Who waits for a connection",
            {f"sum by (part) ({of('database_waiting_requests')})": "{{part}}"},
        ),
        Panel(
            "Redis memory",
            {
                f"max({of('redis_memory_bytes')})": "used",
                f"max({of('redis_memory_limit_bytes')})": "limit, 0: none",
            },
            "bytes",
        ),
        Panel("What Redis refuses", {rate("redis_refusals_total", "why"): "{{why}}"}, "ops"),
    ],
    "Api": [
        Panel("Requests by status", {rate("api_requests_total", "status"): "{{status}}"}, "reqps"),
        Panel(
            "Duration by route, 99 %",
            {quantile(0.99, "api_request_seconds", "route"): "{{route}}"},
            "s",
        ),
        Panel(
            "Who waits for a run's end",
            {
                f"sum({of('api_waiting_requests')})": "requests",
                f"sum({of('api_watched_runs')})": "runs",
            },
        ),
    ],
    "What fails most": [
        Panel(
            "Failed runs within an hour",
            {f"topk(10, sum by (agent, queue) (increase({_failed}[1h])))": ""},
            how="table",
            width=12,
        ),
        Panel(
            "What runs here",
            {f"count by (part, version, python) ({of('build_info')})": ""},
            how="table",
            width=12,
        ),
    ],
}


def target(number: int, panel: Panel, query: str, legend: str) -> dict[str, Any]:
    table = panel.how in ("table", "stat")
    made = {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": query,
        "legendFormat": legend or "__auto",
        "instant": table,
        "range": not table,
    }
    if panel.how in ("table", "heatmap"):
        made["format"] = panel.how
    return made


def options(panel: Panel) -> dict[str, Any]:
    if panel.how == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"}
    if panel.how == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}}
    return {}


def panel_json(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 15, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.how == "timeseries":
        defaults["custom"] = custom
    return {
        "id": number,
        "type": panel.how,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height(panel)},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options(panel),
        "targets": [
            target(n, panel, query, legend)
            for n, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def height(panel: Panel) -> int:
    return 4 if panel.how == "stat" else 8


def panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + height(panel)
            made.append(panel_json(len(made) + 1, panel, x, y))
            x += panel.width
        y += height(row[-1])
    return made


def variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    info = f"{P}build_info"
    return {
        "uid": "researchcopilot",
        "title": "ResearchCopilot",
        "tags": ["researchcopilot"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Source",
                },
                variable("namespace", f"label_values({info}, namespace)"),
                variable("release", f'label_values({info}{{namespace=~"$namespace"}}, release)'),
                variable("queue", f"label_values({P}queue_waiting{{{HERE}}}, queue)"),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "expr": 'ALERTS{alertname=~"ResearchCopilot.*",alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                }
            ]
        },
        "panels": panels(),
    }

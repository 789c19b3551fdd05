"""Every metric that a panel or an alert names exists in the code, with the labels that they use."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from tests.chart.engine import CHART, ROOT

import researchcopilot
from researchcopilot.core.settings import DatabaseSettings
from researchcopilot.storage.db import Database
from researchcopilot.storage.pool_metrics import watch_pool

SERIES = re.compile(r"(?<![\w:$])([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?")
STRING = re.compile(r'"[^"]*"')
# Ranges, and the labels that groups are made by.
NOT_SERIES = re.compile(r"\[[^\]]*\]|\b(?:by|on|without|ignoring)\s*\([^)]*\)|\boffset\s+\w+")
OPERATORS = {"and", "or", "unless", "bool", "group_left", "group_right"}
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
# What Prometheus or the monitors put to every series.
OUTSIDE = {"namespace", "release", "part", "pool", "pod", "instance", "job", "le"}
# Of kube-state-metrics and of KEDA's operator (2.16 and newer), with the labels that they have.
FOREIGN = {
    "kube_pod_container_status_restarts_total": {"container", "uid"},
    "kube_pod_container_status_last_terminated_reason": {"container", "uid", "reason"},
    "kube_deployment_spec_replicas": {"deployment"},
    "kube_deployment_status_replicas_ready": {"deployment"},
    "kube_job_status_failed": {"job_name", "reason"},
    "kube_job_status_succeeded": {"job_name"},
    "keda_scaler_detail_errors_total": {"metric", "scaledObject", "scaler", "triggerIndex", "type"},
}
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, set[str]]]:
    """Series → its labels, of every module of the parts."""
    for module in pkgutil.walk_packages(researchcopilot.__path__, "researchcopilot."):
        if module.name.split(".")[1] in (
            "api",
            "worker",
            "scheduler",
            "janitor",
            "operator",
            "storage",
            "runtime",
        ):
            importlib.import_module(module.name)
    watch_pool(Database(DatabaseSettings()))
    found: dict[str, set[str]] = {}
    for metric, labels in described():
        for suffix in SUFFIXES[metric.type]:
            found[metric.name + suffix] = labels
    yield found


def described() -> Iterator[tuple[Metric, set[str]]]:
    for collector in list(REGISTRY._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for metric in collect(collector):
            if metric.name.startswith("researchcopilot_"):
                yield metric, labels | {key for s in metric.samples for key in s.labels}


def collect(collector: Collector) -> list[Metric]:
    describe = getattr(collector, "describe", None)
    return [*(describe() if describe else ()), *collector.collect()]


def expressions() -> dict[str, str]:
    """Where it stands → the query."""
    board = json.loads((CHART / "files/dashboard.json").read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel.get("targets", [])
    }
    for rule in rules():
        found[f"rule {rule.get('alert') or rule['record']}"] = rule["expr"]
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "files/rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def series(query: str) -> Iterator[tuple[str, set[str]]]:
    """(name, labels that it is selected by) of each series that a query reads."""
    bare = NOT_SERIES.sub("", STRING.sub('""', query))
    for name, labels, call in SERIES.findall(bare):
        if not call and name not in OPERATORS:
            yield name, set(LABEL.findall(labels))


def metric_of(name: str) -> str:
    """A histogram is looked at through any of its series."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_every_metric_exists_with_its_labels(known: dict[str, set[str]]) -> None:
    """Protects: a panel or an alert on a series that nobody exposes is silent for ever."""
    recorded = {rule["record"]: OUTSIDE for rule in rules() if "record" in rule}
    there = {**known, **FOREIGN, **recorded}
    wrong, found = [], set()
    for where, query in expressions().items():
        for name, labels in series(query):
            found.add(name)
            if name not in there:
                wrong.append(f"{where}: there is no {name}")
            elif strange := labels - there[name] - OUTSIDE:
                wrong.append(f"{where}: {name} has no label {strange}")
    assert wrong == []
    assert found >= FOREIGN.keys() | recorded.keys()


def test_every_metric_is_looked_at(known: dict[str, set[str]]) -> None:
    """Protects: what is counted and shown nowhere is known to nobody who needs it."""
    seen = {metric_of(name) for query in expressions().values() for name, _ in series(query)}
    assert {metric_of(name) for name in known} - seen == set()


def test_a_query_is_read_rightly() -> None:
    """The test of the test: what it would not see it could not miss."""
    query = (
        'sum by (a, b) (rate(x_total{c="d {e}",f=~"g"}[5m])) / on (h) group_left y > 2 and z:r'
        " unless"
        " histogram_quantile(0.9, w_bucket) or topk(3, -v{}) offset 5m"
    )
    names = {"x_total": {"c", "f"}, "y": set(), "z:r": set(), "w_bucket": set(), "v": set()}
    assert dict(series(query)) == names


def test_metrics_have_one_prefix_base_units_and_no_ids(known: dict[str, set[str]]) -> None:
    assert len(known) > 60
    for name, labels in known.items():
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", name), name
        assert not {"run_id", "worker_id", "session_id", "user"} & labels, name


def test_each_alert_has_a_severity_and_its_page() -> None:
    pages = set(re.findall(r"^## (\w+)", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE))
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert rule["for"], name
        page = name.removeprefix("ResearchCopilot")
        assert rule["annotations"]["runbook_url"] == f"RUNBOOKS#{page.lower()}"
        assert rule["annotations"]["summary"]
        assert page in pages, f"docs/runbooks.md has no page for {page}"
    assert pages == {name.removeprefix("ResearchCopilot") for name in alerts}


def test_the_dashboard_can_be_imported_anywhere() -> None:
    board = json.loads((CHART / "files/dashboard.json").read_text())
    assert board["uid"] == "researchcopilot"
    assert "__inputs" not in board
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 40
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["expr"] for target in panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24

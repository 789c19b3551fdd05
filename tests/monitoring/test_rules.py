"""Each alert fires in its story and keeps silent in the other, by Prometheus' own tool."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.engine import CHART
from tests.monitoring.cases import CASES, Case, Story

RULES = CHART / "files/rules.yaml"


def promtool(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {
        rule["alert"].removeprefix("ResearchCopilot"): rule for rule in rules if "alert" in rule
    }


def test_the_rules_are_well_formed(tmp_path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES), cwd=tmp_path)


def test_every_alert_has_its_two_stories() -> None:
    assert CASES.keys() == alerts().keys()


@pytest.mark.parametrize("name", CASES)
def test_it_fires_and_keeps_silent(name: str, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "rules.yaml")
    case = CASES[name]
    fires = [case.firing, *([case.also] if case.also else [])]
    unit = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            *(story(name, case, series, fires=True) for series in fires),
            story(name, case, case.silent),
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(unit))
    promtool("test", "rules", "test.json", cwd=tmp_path)


def story(name: str, case: Case, series: Story, *, fires: bool = False) -> dict[str, Any]:
    """Only the labels are compared: the words of a summary hold a value."""
    rule = alerts()[name]
    labels = {**case.where, **case.labels}
    selector = ",".join(
        f'{key}="{value}"'
        for key, value in {"alertname": rule["alert"], "alertstate": "firing", **labels}.items()
    )
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count(ALERTS{{{selector}}})",
                "eval_time": f"{case.at}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }

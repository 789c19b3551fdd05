"""What parts tell on /metrics, and where it is not the truth of truths.py."""

import urllib.request

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.services.truths import TRUTHS, Found, Labels, World, name_of

from researchcopilot.dev.parts import Part

P = "researchcopilot_"
Scrape = dict[str, Metric]


def scrape(part: Part) -> Scrape:
    url = f"http://127.0.0.1:{part.ports['health']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {family.name: family for family in families}


def samples(scraped: Scrape, name: str, suffix: str = "") -> dict[Labels, float]:
    family = scraped.get(name)
    found = family.samples if family else []
    return {frozenset(one.labels.items()): one.value for one in found if one.name == name + suffix}


def seen(scraped: Scrape, name: str) -> dict[Labels, float]:
    if name == "database_connections":
        return {frozenset(): sum(samples(scraped, P + name).values())}
    return samples(scraped, name) or samples(scraped, P + name)


def differs(values: dict[Labels, float], truth: Found) -> bool:
    return values.keys() != truth.keys() or any(
        not low <= values[labels] <= high for labels, (low, high) in truth.items()
    )


def wrong_gauges(world: World) -> list[str]:
    """What is told and not so, what is told by nobody, and what is told without a truth."""
    wrong = []
    for part in world.parts:
        scraped = scrape(part)
        gauges = {name for name, family in scraped.items() if family.type == "gauge"}
        known = {name for name, (where, _) in TRUTHS.items() if name_of(part) in where.split()}
        wrong += [
            f"{part.name}: {name} has no truth in tests/services/truths.py"
            for name in gauges
            if name.removeprefix(P) not in known
        ]
        for name in known:
            values, truth = seen(scraped, name), TRUTHS[name][1](world, part)
            if differs(values, truth):
                told = {tuple(labels): value for labels, value in values.items()}
                is_ = {tuple(labels): value for labels, value in truth.items()}
                wrong.append(f"{part.name}: {name} says {told}; it is {is_}")
    return wrong

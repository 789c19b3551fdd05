"""The daily report: which period, in which language, and what stands on the page."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from researchcopilot.agents.daily_report import MOST_DAYS, language_for, period
from researchcopilot.agents.report_page import headline, write
from researchcopilot.agents.words import cut, plain, question_in, seconds
from researchcopilot.core.errors import Permanent
from researchcopilot.storage.reports import Clock

NOW = datetime(2026, 11, 30, 0, 0, 5, tzinfo=UTC)  # 08:00:05 in Shanghai
SHANGHAI = Clock(NOW, "default", "Asia/Shanghai", None, None, None)


def moments(clock: Clock, *, until_now: bool = False) -> tuple[str, str] | None:
    found = period(clock, until_now=until_now)
    return None if found is None else (f"{found.start:%d %H:%M}", f"{found.end:%d %H:%M}")


def test_the_first_report_is_of_the_day_before_in_the_workspaces_zone() -> None:
    """Protects: a day is one of the workspace, from its midnight to its midnight."""
    assert moments(SHANGHAI) == ("28 16:00", "29 16:00")
    assert moments(replace(SHANGHAI, zone="UTC")) == ("29 00:00", "30 00:00")
    assert moments(replace(SHANGHAI, zone="America/New_York")) == ("28 05:00", "29 05:00")


def test_a_day_of_23_or_25_hours_is_a_day() -> None:
    """Protects: the days on which clocks are changed; and a midnight that does not exist."""
    spring = Clock(datetime(2026, 3, 30, 6, tzinfo=UTC), "w", "Europe/Berlin", None, None, None)
    autumn = replace(spring, now=datetime(2026, 10, 26, 7, tzinfo=UTC))
    for clock, hours in ((spring, 23), (autumn, 25)):
        found = period(clock, until_now=False)
        assert found is not None
        assert found.end - found.start == timedelta(hours=hours)
    # In Cairo, the clocks went from 23:59:59 to 01:00 on 24 April 2026.
    cairo = replace(spring, zone="Africa/Cairo", now=datetime(2026, 4, 24, 9, tzinfo=UTC))
    found = period(cairo, until_now=False)
    assert found is not None
    assert (found.end, found.end - found.start) == (
        datetime(2026, 4, 23, 22, tzinfo=UTC), timedelta(hours=24),
    )  # fmt: skip


def test_the_next_day_covers_a_missed_one() -> None:
    """Protects: a period starts where the last report ended, but not more than a week ago."""
    midnight = datetime(2026, 11, 29, 16, tzinfo=UTC)
    for days in range(1, MOST_DAYS + 1):
        clock = replace(SHANGHAI, last_end=midnight - timedelta(days=days))
        found = period(clock, until_now=False)
        assert found is not None
        assert found.end - found.start == timedelta(days=days)
    long_ago = period(replace(SHANGHAI, last_end=datetime(2025, 1, 1, tzinfo=UTC)), until_now=False)
    assert long_ago is not None
    assert long_ago.end - long_ago.start == timedelta(days=MOST_DAYS)


def test_what_is_reported_is_not_reported_again() -> None:
    """Protects: a second report of a day is none; one up to now is followed by one of the rest."""
    midnight = datetime(2026, 11, 29, 16, tzinfo=UTC)
    assert period(replace(SHANGHAI, last_end=midnight), until_now=False) is None
    assert moments(replace(SHANGHAI, last_end=midnight), until_now=True) == ("29 16:00", "30 00:00")
    noon = midnight - timedelta(hours=12)
    assert moments(replace(SHANGHAI, last_end=noon)) == ("29 04:00", "29 16:00")
    # The zone has moved west: its midnight is in a report already.
    later = replace(SHANGHAI, zone="America/New_York", last_end=midnight)
    assert period(later, until_now=False) is None


def test_an_unknown_zone_says_what_to_do() -> None:
    for zone in ("Mars/Olympus", "../etc", ""):
        with pytest.raises(Permanent, match="workspaces zone"):
            period(replace(SHANGHAI, zone=zone), until_now=False)


def test_most_questions_settle_the_language() -> None:
    """Protects: Chinese if more than half are; in doubt and without questions as the last time."""
    assert language_for(["什么是锁", "召回率怎么评", "What is a lock?"], "en") == "zh"
    assert language_for(["什么是锁", "What is a lock?", "Why?"], "zh") == "en"
    assert [language_for(["什么是锁", "Why?"], last) for last in (None, "zh")] == ["en", "zh"]
    assert [language_for([], last) for last in (None, "en", "zh")] == ["en", "en", "zh"]


def facts(**more: Any) -> dict[str, Any]:
    """A busy Sunday in Shanghai."""
    run_id = "01a22d6a-89da-7cba-849e-747631c58a5e"
    source = {"kind": "document", "title": "Locks", "document_id": run_id, "citations": 2}
    digest = {"run_id": run_id, "times": 1, "agent": "research", "question": "What is a lock?",
              "conclusion": "A lock keeps others out.\nIt is released.\nAnd so on.",
              "sources": [source, {"kind": "memory", "title": None, "citations": 1}],
              "duration_s": 1.234}  # fmt: skip
    return {
        "period": {"workspace": "default", "zone": "Asia/Shanghai", "is_first": False,
                   "start": "2026-11-28T16:00:00+00:00", "end": "2026-11-29T16:00:00+00:00"},
        "runs": {"accepted": 5, "succeeded": 3, "failed": 2, "cancelled": 1, "open": 1,
                 "median_s": 0.8},
        "agents": [{"agent": "research", "succeeded": 3, "failed": 2, "cancelled": 1,
                    "median_s": 0.8, "slowest_s": 200.0}],
        "slowest": [{"run_id": run_id, "agent": "research", "status": "failed",
                     "question": "What is slow?", "seconds": 200.0},
                    {"run_id": run_id, "agent": "research", "status": "succeeded",
                     "question": None, "seconds": 1.2}],
        "failures": [{"fingerprint": "f", "agent": "research", "type": "timed_out",
                      "message": "It did not return.", "count": 2, "open": 1,
                      "last_at": "2026-11-29T09:32:00+00:00", "last_run_id": run_id}],
        "documents": {"count": 2, "items": [
            {"document_id": run_id, "name": "locks.md", "title": "Locks", "bytes": 2048,
             "replaces": True}]},
        "digests": {"count": 3, "items": [
            {**digest, "times": 2}, {**digest, "question": "什么是锁"}]},
        "upkeep": [{"agent": "rebuild_index", "succeeded": 288, "failed": 1}],
        **more,
    }  # fmt: skip


def test_the_page_says_what_matters_first() -> None:
    """Protects: every section, in order, with its figures, in English."""
    page = write(facts(), "en")
    assert page.startswith("# Daily report: Sunday, 29 November 2026\n\n**3 runs succeeded, ")
    for expected in (
        "1 was cancelled.** Half of them took 800 ms or less, the slowest 3 min 20 s. "
        "2 documents came in. 1 run waits or is under way.",
        "| research | 3 | 2 | 1 | 800 ms | 3 min 20 s |",
        "### What is a lock? (×2)\n\n- A lock keeps others out.\n- It is released.\n\n"
        "*from Locks, earlier runs · 1.2 s · run `01a2",
        "1. **3 min 20 s** (failed) – What is slow? · run `01a2",
        r"1. **2 × research: timed\_out** – It did not return.",
        "*last at 17:32 · run `01a22d6a-89da-7cba-849e-747631c58a5e` · 1 waits for somebody",
        "- Locks (`locks.md`, 2.0 kB, replaces an earlier text)\n- … and 1 more",
        "*Workspace default · 2026-11-29 00:00 – 2026-11-30 00:00 (Asia/Shanghai) · "
        "upkeep: 288 runs succeeded, 1 failed*",
    ):
        assert expected in page, page
    assert page.count("What is a lock?") == 1
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == ["## What was asked", "## What took longest", "## What failed",
                        "## New documents"]  # fmt: skip


def test_the_page_is_chinese_all_through() -> None:
    """Protects: no English word of ours is left on a Chinese page."""
    page = write(facts(), "zh")
    assert page.startswith("# 日报：2026年11月29日（星期日）\n\n**3 个运行成功，2 个失败，")
    assert "半数用时不超过 800 毫秒，最慢的用了 3 分 20 秒。新增 2 篇文档。" in page
    for word in ("run `", "Sources", "succeeded", "from ", "last", "Workspace", "more"):
        assert word not in page, word


def test_a_missed_day_is_named_and_a_quiet_one_is_short() -> None:
    """Protects: two days are called two days; nothing happened is said in a line."""
    two = facts()
    two["period"]["start"] = "2026-11-27T16:00:00+00:00"
    assert headline(two, "en") == "Daily report: 28 November 2026 to 29 November 2026"
    assert "*It also covers 1 day before, which had no report.*" in write(two, "en")
    assert "本期也包括之前没有日报的 1 天。" in write(two, "zh")
    none = dict.fromkeys(("accepted", "succeeded", "failed", "cancelled", "open"), 0)
    empty = facts(
        runs={**none, "median_s": None}, agents=[], slowest=[], failures=[], upkeep=[],
        documents={"count": 0, "items": []}, digests={"count": 0, "items": []},
    )  # fmt: skip
    assert "\n\n**Nothing was asked.**\n\n---\n" in write(empty, "en")
    assert len(write(empty, "zh").splitlines()) == 7


def test_text_from_outside_changes_no_page() -> None:
    """Protects: a question cannot make headings, cells, links or HTML of a manager's report."""
    nasty = "# Fired\n| a | <script>alert(1)</script> [x](http://x) `c` *b* &amp;"
    given = facts()
    given["digests"]["items"][0]["question"] = nasty
    given["agents"][0]["agent"] = "a|b\n# c"
    given["failures"][0]["message"] = nasty
    page = write(given, "en")
    assert "<script>" not in page
    assert "\n# F" not in page
    assert r"| a\|b \# c | 3 |" in page
    assert plain("a_b") == r"a\_b"


@pytest.mark.parametrize(
    ("value", "english", "chinese"),
    [
        (0.0, "0 ms", "0 毫秒"),
        (0.9994, "999 ms", "999 毫秒"),
        (0.9996, "1.0 s", "1.0 秒"),
        (59.94, "59.9 s", "59.9 秒"),
        (59.96, "1 min 0 s", "1 分 0 秒"),
        (3599.6, "1 h 0 min", "1 小时 0 分"),
        (90_000.0, "25 h 0 min", "25 小时 0 分"),
    ],
)
def test_seconds_are_written_as_people_say_them(value: float, english: str, chinese: str) -> None:
    assert (seconds(value, "en"), seconds(value, "zh")) == (english, chinese)


def test_questions_are_found_where_agents_have_them() -> None:
    assert question_in("a\n b") == question_in({"question": "a b"}) == "a b"
    assert question_in({"question": 3}) == question_in(None) == question_in([1]) == ""
    assert cut("a" * 9, 5) == "aaaa…"

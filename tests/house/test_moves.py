"""The state machine stands in one table, MOVES. SQL, CHECK constraints and the picture in
ARCHITECTURE.md say the same."""

import re
from pathlib import Path

import psycopg
import pytest

from researchcopilot.core.states import MOVES, PAIRS, TERMINAL, Status, allowed

ROOT = Path(__file__).parents[2]
FUNCTIONS = ROOT / "services/researchcopilot/storage/migrations/functions"
# Which function makes the moves of a verb, and which rows it may take them from.
MAKERS = {
    "submit": "submit_1",
    "claim": "claim_1",
    "finish": "finish_1",
    "release": "finish_1",
    "reclaim": "reclaim_2",
    "expire": "expire_1",
    "cancel": "cancel_1",
    "replay": "replay_1",
    "fire": "fire_1",
    "trigger": "trigger_1",
}


def test_no_move_leaves_a_terminal_status() -> None:
    for status in TERMINAL:
        assert not any(allowed(status, target) for target in Status)


def test_every_status_is_reached_and_every_other_is_left() -> None:
    assert {move.target for move in MOVES} == set(Status)
    assert {move.source for move in MOVES} - {None} == set(Status) - TERMINAL


@pytest.mark.parametrize("verb", sorted({move.verb for move in MOVES}))
def test_the_function_of_a_verb_makes_just_its_moves(verb: str) -> None:
    header = (FUNCTIONS / f"{MAKERS[verb]}.sql").read_text().splitlines()[0]
    targets = header.split("→", 1)[1].split(", for")[0]
    moves = [move for move in MOVES if MAKERS[move.verb] == MAKERS[verb]]
    assert {move.target for move in moves} == set(Status) & set(re.findall(r"[a-z]+", targets))


def test_the_database_knows_the_same_statuses(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'runs'::regclass AND conname = 'runs_status_check'"
        ).fetchone()
    assert row is not None
    assert set(re.findall(r"'(\w+)'", row[0])) == {str(status) for status in Status}


def test_the_picture_shows_just_these_moves() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    picture = text.split("```mermaid")[1].split("```")[0]
    drawn = set()
    for source, target in re.findall(r"(\[\*\]|\w+) --> (\w+)", picture):
        drawn.add((None if source == "[*]" else Status(source), Status(target)))
    assert drawn == PAIRS

"""`corpus add` and `corpus list` as a person calls them: a line a file, honest exit codes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.services.claimed import claim, context, finish

from researchcopilot.agents.rebuild import rebuild_index
from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.queue import Queue

pytestmark = pytest.mark.anyio


@contextmanager
def corpus(environment: dict[str, str], *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The command, running."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RC_")}
    with subprocess.Popen(
        [sys.executable, "-m", "researchcopilot", "corpus", *map(str, arguments)],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    """(exit code, lines of stdout, lines of stderr) once it has ended."""
    out, err = await asyncio.to_thread(process.communicate, timeout=30)
    return process.returncode, out.splitlines(), err.splitlines()


async def said(
    environment: dict[str, str], *arguments: str | Path
) -> tuple[int, list[str], list[str]]:
    with corpus(environment, *arguments) as process:
        return await ended(process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep" / ".hidden").mkdir(parents=True)
    (folder / "a.md").write_text("# Alpha\n\nText.")
    (folder / "deep" / "b.txt").write_bytes("召回率\n一句话。".encode("gb18030"))
    (folder / "deep" / "same.md").write_text("# Alpha\n\nText.")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "deep" / ".hidden" / "c.md").write_text("hidden")
    return folder


async def test_each_file_gets_a_line_and_one_bad_file_stops_no_other(
    environment: dict[str, str], db: Database, folder: Path
) -> None:
    (folder / "binary.md").write_bytes(b"abc\x00def")
    (folder / "deep" / "empty.txt").write_text("")
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    code, out, err = await said(environment, "add", folder, folder / "picture.png", "missing.md")
    assert code == 1
    assert out[:-1] == [
        "added      a.md  Alpha",
        "added      deep/b.txt  召回率",
        "duplicate  deep/same.md  is a.md",
        "8 files: 2 added, 1 duplicate, 5 refused",
    ]
    assert out[-1].startswith("index: run ")
    assert [line.split()[:2] for line in err] == [
        ["refused", "binary.md"],
        ["refused", "huge.txt"],
        ["refused", "deep/empty.txt"],
        ["refused", "picture.png"],
        ["refused", "missing.md:"],
    ]
    assert "huge.txt has 50.0 MB; a document may have 16.0 MB" in err[1]


async def test_added_again_nothing_changes(
    environment: dict[str, str], db: Database, folder: Path
) -> None:
    assert (await said(environment, "add", folder))[0] == 0
    code, out, _ = await said(environment, "add", folder)
    assert code == 0
    assert out[-2] == "3 files: 1 duplicate, 2 unchanged"
    rows = await db.rows(b"SELECT agent, queue, session_id FROM runs")
    assert rows == [("rebuild_index", "system", None)]


async def test_wait_ends_when_the_index_holds_them(
    environment: dict[str, str], db: Database, queue: Queue, folder: Path, tmp_path: Path
) -> None:
    with corpus(environment, "add", folder, "--wait", "--workspace", "team-a") as process:
        ctx = context(await claim(db, await submitted(db)), db, queue, tmp_path / "cache")
        await finish(db, ctx.run, "succeeded", await rebuild_index(ctx, ctx.run.input))
        code, out, err = await ended(process)
    assert (code, err) == (0, [])
    assert out[-1].startswith("index: version 1 holds 2 documents in 2 chunks, after ")
    assert ctx.run.workspace_id == await workspace_id_of(db, "team-a") != 1


async def test_wait_says_what_went_wrong(
    environment: dict[str, str], db: Database, queue: Queue, folder: Path
) -> None:
    code, _, err = await said(environment, "add", folder, "--wait", "--timeout", "0.1")
    assert code == 1
    assert "did not end within 0.1 s; it goes on" in err[-1]
    await finish(db, await claim(db, await submitted(db)), "succeeded", {})
    with corpus(environment, "add", folder, "--wait") as process:
        claimed = await claim(db, await submitted(db))
        await finish(db, claimed, "failed", error={"type": "X", "message": "no disk"})
        code, _, err = await ended(process)
    assert code == 1
    assert err[-1] == f"index: run {claimed.run_id} failed: no disk"


async def submitted(db: Database) -> str:
    """The id of the run that the command submits, as soon as it is there."""
    async with asyncio.timeout(20):
        while True:
            if rows := await db.rows(b"SELECT run_id FROM runs WHERE status = 'queued'"):
                return str(rows[0][0])


async def test_the_corpus_is_listed_by_name(
    environment: dict[str, str], db: Database, folder: Path
) -> None:
    code, out, err = await said(environment, "list")
    assert (code, out) == (0, [])
    assert "The corpus is empty" in err[0]
    await said(environment, "add", folder / "a.md", folder / "deep" / "b.txt")
    _, out, _ = await said(environment, "list")
    assert [line.split()[2:] for line in out] == [
        ["14", "a.md", "Alpha"],
        ["22", "b.txt", "召回率"],
    ]


async def test_two_files_that_would_take_one_name_are_told_apart(
    environment: dict[str, str], db: Database, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.md").write_text(name)
    files = [tmp_path / "one" / "x.md", tmp_path / "two" / "x.md", tmp_path / "one" / "x.md"]
    code, out, err = await said(environment, "add", *files)
    assert (code, out[0]) == (1, "added      x.md  one")
    assert len(err) == 1
    assert "takes the name x.md already; name the folder that holds both" in err[0]

"""`researchcopilot corpus add|list`: documents of a workspace.

Each file gets a line that says what became of it; refusals go to stderr and make the exit code 1,
but stop no other file. Then a run is submitted that brings the index up to date; `--wait` waits
for it.
"""

import argparse
import asyncio
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from researchcopilot.cli import files
from researchcopilot.cli.files import Found
from researchcopilot.core.documents import AddedDocument, NewDocument
from researchcopilot.core.errors import BadInput, Unavailable
from researchcopilot.core.models import Run, Submission
from researchcopilot.core.settings import Settings, load
from researchcopilot.core.states import TERMINAL, Status
from researchcopilot.runtime import log
from researchcopilot.storage import documents
from researchcopilot.storage.db import Database
from researchcopilot.storage.keys import workspace_id_of
from researchcopilot.storage.migrate import check_schema
from researchcopilot.storage.queue import Queue
from researchcopilot.storage.runs import get_run
from researchcopilot.storage.submit import Submitter

BATCH_BYTES = 8_000_000
BATCH_DOCUMENTS = 100
LOOK_S = 0.1
PATIENCE_S = 5.0
_SUBMIT_TRIES = 5

Verb = Callable[[Database, Settings, argparse.Namespace], Awaitable[int]]


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    settings = load(os.environ)
    log.setup("error", settings.log.format)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that a terminal cannot show
    return asyncio.run(_with_database(settings, arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="researchcopilot corpus", description="Documents.")
    verbs = parser.add_subparsers(required=True, metavar="add|list")
    add = verbs.add_parser("add", help="add Markdown and text files, and folders of them")
    add.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    add.add_argument("--wait", action="store_true", help="until the index holds them")
    add.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="of --wait (default: 600)"
    )
    add.set_defaults(verb=_add)
    show = verbs.add_parser("list", help="the documents, by name")
    show.add_argument("--json", action="store_true", help="JSON, one document a line")
    show.set_defaults(verb=_list)
    for verb in (add, show):
        verb.add_argument("--workspace", default="default", metavar="NAME", help="made if new")
    return parser


async def _with_database(settings: Settings, arguments: argparse.Namespace) -> int:
    db = Database(settings.database)
    verb: Verb = arguments.verb
    await db.open()
    try:
        await check_schema(db)
        return await verb(db, settings, arguments)
    finally:
        await db.close()


async def _add(db: Database, settings: Settings, arguments: argparse.Namespace) -> int:
    found = files.find(arguments.paths)
    if not found:
        print("There is no .md or .txt file in what was named.", file=sys.stderr)
        return 1
    workspace_id = await workspace_id_of(db, arguments.workspace)
    told = _Told(len(found))
    for batch in _batches(found, settings.api.max_document_bytes, told):
        told.added(batch, await documents.add_documents(db, workspace_id, batch))
    print(told.summary())
    if not told.count:
        return 1
    run_id = await _submit_rebuild(db, settings, workspace_id)
    if arguments.wait:
        done = await _wait(db, workspace_id, run_id, arguments.timeout)
        return 0 if done and not told.refused else 1
    print(f"index: run {run_id} brings it up to date")
    return 1 if told.refused else 0


class _Told:
    """A line for each file as soon as its fate is known; on a terminal with how far we are."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.refused = 0
        self.count: Counter[str] = Counter()
        self._counted = sys.stderr.isatty()

    def refuse(self, error: BadInput) -> None:
        self.refused += 1
        print(f"{self._place()}refused    {error.message}", file=sys.stderr)

    def added(self, batch: Sequence[NewDocument], outcomes: Sequence[AddedDocument]) -> None:
        for document, added in zip(batch, outcomes, strict=True):
            self.count[added.outcome] += 1
            about = f"is {added.duplicate_of}" if added.duplicate_of else document.title
            print(f"{self._place()}{added.outcome:<10} {added.name}  {about}")

    def _place(self) -> str:
        done = self.refused + self.count.total()
        return f"[{done:>{len(str(self.total))}}/{self.total}] " if self._counted else ""

    def summary(self) -> str:
        parts = [f"{number} {outcome}" for outcome, number in sorted(self.count.items())]
        parts += [f"{self.refused} refused"] if self.refused else []
        return f"{self.total} file{'s' if self.total != 1 else ''}: {', '.join(parts)}"


def _batches(found: Sequence[Found], max_bytes: int, told: _Told) -> Iterator[list[NewDocument]]:
    batch: list[NewDocument] = []
    size = 0
    for file in found:
        try:
            document = files.read(file, max_bytes=max_bytes)
        except BadInput as error:
            told.refuse(error)
            continue
        if batch and (size + document.bytes > BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += document.bytes
    if batch:
        yield batch


async def _submit_rebuild(db: Database, settings: Settings, workspace_id: int) -> str:
    """The id of the run that will see what was just committed. Always asked for, also when nothing
    changed: an earlier call may have died before it asked."""
    queue = Queue(settings.redis)
    submitter = Submitter(db, queue)
    await queue.open()
    try:
        for last in [False] * (_SUBMIT_TRIES - 1) + [True]:
            submission = Submission((documents.rebuild_run(workspace_id),))
            try:
                return (await submitter(submission)).run_ids[0]
            except Unavailable:
                if last:
                    raise
                await asyncio.sleep(LOOK_S)
        raise AssertionError("the last try returns or raises")
    finally:
        await submitter.close()
        await queue.close()


async def _wait(db: Database, workspace_id: int, run_id: str, timeout: float) -> bool:
    """Did the rebuild succeed in time? Says so, or why not."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    warned = False
    while (run := await get_run(db, workspace_id, run_id)) is not None:
        waited = loop.time() - began
        if run.status in TERMINAL:
            print(_rebuilt(run, waited), file=sys.stdout if _succeeded(run) else sys.stderr)
            return _succeeded(run)
        if waited > timeout:
            break
        if run.status == Status.QUEUED and waited > PATIENCE_S and not warned:
            warned = True
            print(
                "index: no worker has taken the rebuild yet. Is one running that serves the queue "
                "system (RC_WORKER_QUEUES)?",
                file=sys.stderr,
            )
        await asyncio.sleep(LOOK_S)
    print(f"index: run {run_id} did not end within {timeout:g} s; it goes on.", file=sys.stderr)
    return False


def _succeeded(run: Run) -> bool:
    return run.status == Status.SUCCEEDED


def _rebuilt(run: Run, waited: float) -> str:
    if not _succeeded(run):
        reason = (run.error or {}).get("message", "no reason is known")
        return f"index: run {run.run_id} {run.status}: {reason}"
    result = run.result or {}
    return (
        f"index: version {result.get('index_version')} holds {result.get('documents')} documents "
        f"in {result.get('chunks')} chunks, after {waited:.1f} s"
    )


async def _list(db: Database, settings: Settings, arguments: argparse.Namespace) -> int:
    workspace_id = await workspace_id_of(db, arguments.workspace)
    after: str | None = None
    number = 0
    while page := await documents.list_documents(db, workspace_id, after=after, limit=500):
        for info in page:
            number += 1
            if arguments.json:
                print(json.dumps(asdict(info), ensure_ascii=False, default=str))
            else:
                when = f"{info.created_at:%Y-%m-%d %H:%M}"
                print(f"{when}  {info.bytes:>10,}  {info.name}  {info.title}")
        after = page[-1].name
    if number == 0:
        print("The corpus is empty: researchcopilot corpus add PATH…", file=sys.stderr)
    return 0

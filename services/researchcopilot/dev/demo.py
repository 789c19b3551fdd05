"""`researchcopilot demo`: a question in, a cited answer out, on real servers, through a kill -9.

Starts the whole stack in a temporary folder, fills it with the sample corpus, asks three
questions over HTTP and shows the life of each run as it happens, and the digest that the clock
makes of one; kills a worker in the middle of a run; then shows the daily report. Exit code 0 only
if every run succeeded. Leaves no process and no folder behind.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from typing import Any

from researchcopilot.core.errors import ResearchCopilotError
from researchcopilot.dev import show
from researchcopilot.dev.client import ApiError, Client
from researchcopilot.dev.keys import api_key
from researchcopilot.dev.lives import Asked, Event, NotInTime, Watcher
from researchcopilot.dev.parts import Part
from researchcopilot.dev.processes import StackError, until
from researchcopilot.dev.progress import Progress
from researchcopilot.dev.signals import interruptible
from researchcopilot.dev.stack import Plan, Stack
from researchcopilot.dev.tally import Counts, settled
from researchcopilot.dev.terminal import Terminal, pad
from researchcopilot.storage.db import Database
from researchcopilot.storage.queue import Queue

QUESTIONS = (
    "对比 pgvector 与 Qdrant",
    "RAG 的召回率怎么评",
    "How does the GIL affect concurrency?",
)
LIMIT = 60.0
LEASE, SWEEP, SLEEP = 3.0, 0.5, 2.0
DIGEST_DELAY = 1.0
SETTINGS = {
    "RC_LEASE_SECONDS": f"{LEASE:g}",
    "RC_SWEEP_SECONDS": f"{SWEEP:g}",
    "RC_REDIS_DONE_KEPT": "1000",
    "RC_DIGEST_DELAY_SECONDS": f"{DIGEST_DELAY:g}",
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="researchcopilot demo", description=__doc__)
    parser.parse_args(argv)
    out = Terminal()
    begun = time.monotonic()
    stack = Stack(Plan(environ={**os.environ, **SETTINGS}), Progress(out))
    try:
        with interruptible(), stack:
            runs = Demo(stack, out).run()
    except KeyboardInterrupt:
        out.line(f"\ninterrupted; {leftover(stack)}")
        return 130
    except ResearchCopilotError as error:
        print(f"\n{Terminal(sys.stderr).tint('demo: ', 'red', 'bold')}{error}", file=sys.stderr)
        return 1
    took = time.monotonic() - begun
    done = out.tint(f"All {runs} runs succeeded, in {took:.1f} s.", "green", "bold")
    out.line(f"\n{done} {leftover(stack).capitalize()}.")
    return 0 if stack.cleared else 1


def leftover(stack: Stack) -> str:
    if stack.cleared:
        return "every process has ended and the folder is gone"
    return f"the folder {stack.folder} could not be removed"


class Demo:
    """The story, act by act."""

    def __init__(self, stack: Stack, out: Terminal) -> None:
        self.stack = stack
        self.out = out
        self.dead: Part | None = None

    def run(self) -> int:
        """How many runs succeeded; StackError if one did not."""
        show.title(self.out, 1, "Real servers and every part, each a process")
        self.stack.start()
        settings = self.stack.settings
        with ExitStack() as closing:
            closing.enter_context(self._explained())
            self.runner = closing.enter_context(asyncio.Runner())
            self.client = closing.enter_context(Client(self.stack.api_url, api_key(self.stack)))
            self.database = Database(settings.database)
            self.queue = Queue(settings.redis)
            self.runner.run(self.database.open())
            closing.callback(lambda: self.runner.run(self._close()))
            self.watcher = Watcher(
                self.client, self.database, self.runner, self._tell, self._check_parts
            )
            self._corpus()
            self._digests(self._questions())
            self._counts()
            self._kill_a_worker()
            self._counts()
            self._report()
            return self._settled().statuses["succeeded"]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Put the log's end of the part that may be guilty under what went wrong."""
        try:
            yield
        except (NotInTime, ApiError) as error:
            kind = "api" if isinstance(error, ApiError) else "worker"
            suspects = [part for name, part in self.stack.parts.items() if name.startswith(kind)]
            words = [part.last_words(10) for part in suspects]
            raise StackError("\n".join([str(error), *words])) from error

    async def _close(self) -> None:
        await self.queue.close()
        await self.database.close()

    def _corpus(self) -> None:
        show.title(self.out, 2, "The sample corpus, and its index: a run of the queue `system`")
        with as_file(files("researchcopilot.agents.research") / "sample") as folder:
            told = self.stack.command("corpus", "add", str(folder))
        show.block(self.out, told, ["dim"])
        found = self.client.get("/v1/runs?agent=rebuild_index&limit=1")["data"]
        run = found[0] if found else self._submit("rebuild_index", {}, queue="system")
        self._finish([Asked("index", run["run_id"], "")])

    def _questions(self) -> list[dict[str, Any]]:
        show.title(self.out, 3, "Three questions over HTTP: POST /v1/runs, GET /v1/runs/{id}")
        asked = [self._ask(label, text) for label, text in zip("ABC", QUESTIONS, strict=True)]
        runs = self._finish(asked)
        for one in asked:
            show.answer(self.out, one.label, one.text, runs[one.label]["result"])
        return [runs[one.label] for one in asked]

    def _ask(self, label: str, question: str) -> Asked:
        begun = time.monotonic()
        run = self._submit("research", {"question": question})
        took = f"202 after {(time.monotonic() - begun) * 1000:.0f} ms"
        tinted = self.out.tint(took, "dim")
        self.out.line(f"   {self.out.tint(label, 'bold')}  {pad(question, 50)}{tinted}")
        return Asked(label, run["run_id"], question)

    def _submit(self, agent: str, given: Any, **more: str) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.client.post(
            "/v1/runs", {"agent": agent, "input": given, **more}
        )
        return run

    def _digests(self, runs: Sequence[Mapping[str, Any]]) -> None:
        show.title(self.out, 4, "The clock goes on: a digest of each, as a message in its session")
        after = f"After {DIGEST_DELAY:g} s here; after 5 minutes by default. This is that of A:"
        show.block(self.out, after, ["dim"])
        if not until(lambda: all(map(self._digest, runs)), LIMIT, 0.05):
            words = [part.last_words() for name, part in self.stack.parts.items() if name != "api"]
            raise StackError("\n".join(["A digest did not come in time.", *words]))
        show.page(self.out, str(self._digest(runs[0])))

    def _digest(self, run: Mapping[str, Any]) -> str | None:
        """The text of a run's digest, once it is there."""
        lines = self.client.get(run["links"]["messages"])["data"]
        found = [line["payload"]["content"] for line in lines if line["role"] == "digest"]
        return found[0] if found else None

    def _counts(self) -> None:
        self.out.line()
        self.out.line(f"   {self.out.tint('What Postgres and Valkey hold now', 'bold')}")
        show.counts(self.out, self._settled())

    def _settled(self) -> Counts:
        """The counts once nothing is in anybody's hands; a dead worker's are emptied after two
        leases. Whatever else is to be seen then is a fault."""
        found = self.runner.run(settled(self.database, self.queue, 0.2))
        if not found.at_rest:
            with Progress(self.out)("until the janitor has emptied the dead worker's hands"):
                found = self.runner.run(settled(self.database, self.queue, LIMIT))
        if not found.at_rest or set(found.statuses) != {"succeeded"}:
            janitor = self.stack.parts["janitor"].last_words()
            raise StackError(f"That should all be at rest and succeeded: {found}. {janitor}")
        return found

    def _kill_a_worker(self) -> None:
        show.title(self.out, 5, "kill -9 of a worker in the middle of a run")
        show.block(
            self.out,
            f"The run sleeps {SLEEP:g} s. A lease is {LEASE:g} s here and the janitor sweeps each "
            f"{SWEEP:g} s\n(defaults: 15 s and 5 s), so that this takes seconds.",
            ["dim"],
        )
        run = self._submit("echo", {"sleep": SLEEP, "say": "still here"})
        asked = Asked("D", run["run_id"], "")
        begun = time.monotonic()
        self.watcher.begun(asked, LIMIT)
        self.dead = self._worker_of(asked)
        time.sleep(SLEEP / 2)
        pid = self.dead.pid
        self.dead.kill()
        ms = (time.monotonic() - begun) * 1000
        self._tell(Event("D", "kill -9", ms, pid, note=f"process {pid}"))
        self._finish([asked])
        self._prove(asked, pid)

    def _report(self) -> None:
        show.title(self.out, 6, "The daily report: each day at 08:00; asked for by hand, up to now")
        run = self._submit("daily_report", {"until": "now"}, queue="system")
        result = self._finish([Asked("E", run["run_id"], "")])["E"]["result"]
        report = self.client.get(f"/v1/reports/{result['report_id']}")
        show.page(self.out, report["markdown"])

    def _worker_of(self, asked: Asked) -> Part:
        claim = self.watcher.claims([asked])[-1]
        for part in self.stack.parts.values():
            if part.pid == claim.pid and part.alive:
                return part
        raise StackError(f"No worker of this stack executes the run {asked.run_id}.")

    def _prove(self, asked: Asked, pid: int) -> None:
        """It really was cut off, and it really ended on another worker."""
        claims = self.watcher.claims([asked])
        outcomes = [(claim.outcome, claim.pid == pid) for claim in claims]
        if outcomes != [("lost", True), ("succeeded", False)]:
            raise StackError(f"The run did not go over to another worker: {outcomes}.")

    def _finish(self, asked: Sequence[Asked]) -> dict[str, dict[str, Any]]:
        """Follow to the end; each must have succeeded."""
        runs = self.watcher.ended(asked, LIMIT)
        for one in asked:
            run = runs[one.label]
            if run["status"] != "succeeded":
                raise StackError(self._why(one, run))
        return runs

    def _why(self, asked: Asked, run: Mapping[str, Any]) -> str:
        error = run.get("error") or {}
        text = f"Run {asked.label} ended as {run['status']}: {error.get('message', 'no reason')}"
        claims = self.watcher.claims([asked])
        pids = [claim.pid for claim in claims[-1:]]
        guilty = [part for part in self.stack.parts.values() if part.pid in pids]
        return "\n".join([text, *(part.last_words() for part in guilty)])

    def _tell(self, event: Event) -> None:
        self.out.line(show.event_line(self.out, event, self._name(event.pid)))

    def _name(self, pid: int | None) -> str:
        names = {part.pid: name for name, part in self.stack.parts.items()}
        return "" if pid is None else names.get(pid, f"process {pid}")

    def _check_parts(self) -> None:
        """A part that died is the reason for whatever does not happen."""
        for part in self.stack.parts.values():
            if not part.alive and part is not self.dead:
                end = part.child.describe_end()
                raise StackError(f"{part.name} ended ({end}). {part.last_words()}")

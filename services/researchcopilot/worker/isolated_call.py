"""One call of an agent in a process of its own, so that what ends the process ends this run only.

The worker keeps the claim: it answers what the agent asks for (steps, emits, messages) through the
same fenced Context as for a run in its own process, and judges how the run ended. What comes over
the pipe is taken for data, and nothing that a broken process says or does not say hangs the worker.
"""

import asyncio
import json
import logging
import signal
from typing import Any

from researchcopilot.agents.policy import RetryPolicy
from researchcopilot.core.errors import AgentCrashed
from researchcopilot.worker.child_context import write_message
from researchcopilot.worker.context import WorkerContext
from researchcopilot.worker.crash import crashed, how
from researchcopilot.worker.frames import Broken
from researchcopilot.worker.group import ProcessGroup
from researchcopilot.worker.isolation import Isolation
from researchcopilot.worker.judge import Failure, judge
from researchcopilot.worker.metrics import CRASHED

log = logging.getLogger(__name__)
TERM_S = 0.5  # between SIGTERM and SIGKILL
NOT_BEGUN = "The agent had not begun: its process was still loading Python and the agents."
LAST_WORDS_S = 0.5  # what a process said before it ended may still be on its way
EXIT_S = 5.0  # from its last word to its end, if it has not said what came of the agent


class _RaisedThere(Exception):
    """The step's function has raised, in the process; the agent has the error itself."""


class IsolatedCall:
    """An agent under way in a process of its own; to its executor the same as a `Call`, but it has
    begun only when the process has loaded what it needs."""

    thread = None

    def __init__(self, isolation: Isolation, context: WorkerContext, limit_s: float) -> None:
        self._isolation = isolation
        self._context = context
        self._job = isolation.job(context, limit_s)
        self._group: ProcessGroup | None = None
        self._stopping = False
        self._values: dict[int, asyncio.Future[str | None]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self.stack = ""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.future: asyncio.Future[str | AgentCrashed | Failure]
        self.future = asyncio.create_task(self._run())
        self.begun.add_done_callback(lambda _: isolation.refill())
        self.future.add_done_callback(lambda _: isolation.refill())

    def ended(self, policy: RetryPolicy, limit: int) -> str | Failure:
        """The text of its result, or what its failure means."""
        if not self.future.done():
            return judge(crashed(-signal.SIGKILL, self.begun.done()), policy)
        found = self.future.exception() or self.future.result()
        return judge(found, policy, self.stack) if isinstance(found, BaseException) else found

    async def stop(self, grace_s: float) -> bool:
        """Tell the agent; then SIGTERM to all of its group, then SIGKILL. True when it is over."""
        self._stopping = True
        if self._group is not None:
            self._group.frames.send(stop=True)
        await asyncio.wait((self.future,), timeout=grace_s)
        for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 5.0)):
            if self._group is not None and not self.future.done():
                self._group.signal(number)
                await asyncio.wait((self.future,), timeout=wait_s)
        return self.future.done()

    async def _run(self) -> str | AgentCrashed | Failure:
        spare = self._isolation.spare()
        if spare is not None:
            found = await self._in(spare)
            if self.begun.done() or self._stopping:
                return found
            # It died while it was waiting, of something that has nothing to do with this run.
        try:
            group = await self._isolation.new()
        except OSError as error:
            return AgentCrashed(f"No process can be started for this run: {error}.")
        return await self._in(group)

    async def _in(self, group: ProcessGroup) -> str | AgentCrashed | Failure:
        self._group = group
        if self._stopping:
            group.signal(signal.SIGKILL)
        group.frames.send(**self._job)
        listening = asyncio.create_task(self._listen(group))
        exited = asyncio.create_task(group.exited.wait())
        try:
            await asyncio.wait((listening, exited), return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait((listening,), timeout=LAST_WORDS_S)
            found = listening.result() if done else None
            if found is None and not (await asyncio.wait((exited,), timeout=EXIT_S))[0]:
                found = AgentCrashed(
                    "The agent's process closed the pipe to its worker and went on; it was ended. "
                    "Something in it closes files that it did not open."
                )
        finally:
            for task in (listening, exited, *self._asking):
                task.cancel()
            code = await group.end()
        self.stack = self.stack or group.stack or ("" if self.begun.done() else NOT_BEGUN)
        if found is not None:
            return found
        if not self._stopping:
            CRASHED.labels(how(code)).inc()
        return crashed(code, self.begun.done())

    async def _listen(self, group: ProcessGroup) -> str | AgentCrashed | Failure | None:
        """Until it says what came of the agent; None if it goes without a word."""
        try:
            while (message := await group.frames.receive()) is not None:
                if "ended" in message:
                    ended = message["ended"]
                    return str(ended["text"]) if "text" in ended else Failure(**ended["failure"])
                self._heard(group, message)
        except (Broken, KeyError, TypeError) as error:
            return AgentCrashed(
                f"The agent's process wrote into the pipe to its worker what is no message of ours "
                f"({error}); it was ended. Something in it writes to a file that it did not open."
            )
        return None

    def _heard(self, group: ProcessGroup, message: dict[str, Any]) -> None:
        if "ask" in message:
            task = asyncio.create_task(self._answer(group, message))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        elif "value" in message:
            self._values.pop(message["value"]).set_result(message["text"])
        elif "where" in message:
            self.stack = message["where"]
        elif "started" in message and not self.begun.done():
            self.begun.set_result(None)

    async def _answer(self, group: ProcessGroup, message: dict[str, Any]) -> None:
        number = message["ask"]
        try:
            value = await self._do(group, message)
        except _RaisedThere:
            return
        except Exception as error:
            group.frames.send(answer=number, error=type(error).__name__, message=str(error))
        else:
            group.frames.send(answer=number, value=value)

    async def _do(self, group: ProcessGroup, message: dict[str, Any]) -> Any:
        if message["verb"] == "messages":
            return [write_message(found) for found in await self._context.messages()]
        if message["verb"] == "emit":
            return await self._context.emit(message["kind"], json.loads(message["data"]))
        return await self._context.step(message["name"], lambda: self._value(group, message["ask"]))

    async def _value(self, group: ProcessGroup, number: int) -> Any:
        """What the step's function gives, which runs in the process."""
        future = self._values[number] = asyncio.get_running_loop().create_future()
        group.frames.send(answer=number, wanted=True)
        text = await future
        if text is None:
            raise _RaisedThere
        return json.loads(text)

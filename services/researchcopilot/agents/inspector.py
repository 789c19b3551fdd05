"""The process that checks inputs against schemas for this one: started when it is first needed,
asked one thing at a time, and started anew after it died of a check that took too long.

Such a schema is then set aside for a while, so that nobody can keep all others waiting by sending
the same input again. It ends when its input is closed, so it never outlives who has started it.
"""

import asyncio
import atexit
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from researchcopilot.agents.schema_check import LIMIT_S, Told
from researchcopilot.core.text import dumps

MODULE = "researchcopilot.agents.schema_check"
WAIT_S = 10.0  # for a process that computes for a second, on a machine that has other work
LINE_S = 2.0  # in line before it: nobody waits longer for others
SET_ASIDE_S = 60.0
_MOST_ASIDE = 256


class Inspector:
    """One line of callers and one process. `check` is for any event loop, or several."""

    def __init__(self) -> None:
        # A thread of its own: those of the loop resolve names and must not stand in this line.
        self._line = ThreadPoolExecutor(1, thread_name_prefix="inspector")
        self._process: subprocess.Popen[bytes] | None = None
        self._aside: dict[str, float] = {}
        atexit.register(self.close)

    async def check(self, value: Any, schema: str) -> Told:
        """As schema_check does it; or that it could not be told in time."""
        loop = asyncio.get_running_loop()
        until = time.monotonic() + LINE_S
        try:
            return await loop.run_in_executor(self._line, self._ask, value, schema, until)
        except RuntimeError as error:  # no thread can be started
            return Told([], f"nobody can be asked: {error}")

    def close(self) -> None:
        """Wait for what was asked, and end the process. Nothing can be asked any more."""
        atexit.unregister(self.close)
        self._line.shutdown()
        self._end()

    def _ask(self, value: Any, schema: str, until: float) -> Told:
        if time.monotonic() > until:
            return Told([], f"others have kept the process that checks busy for {LINE_S:g} s")
        if self._aside.get(schema, 0.0) > time.monotonic():
            return Told([])  # it was said when that began
        try:
            answer = self._answer(dumps([value, schema]).encode() + b"\n")
        except (OSError, RuntimeError) as error:
            self._end()
            return Told([], f"the process that checks cannot be asked: {error}")
        if answer.endswith(b"\n"):
            refusals, trouble = json.loads(answer)
            return Told([(path, message) for path, message in refusals], trouble)
        return Told([], self._died_of(schema))

    def _died_of(self, schema: str) -> str:
        code = self._end()
        if code not in (-signal.SIGPROF, -signal.SIGKILL):
            return f"the process that checks has ended with {code}; its last words stand above"
        if len(self._aside) >= _MOST_ASIDE:
            self._aside.clear()
        self._aside[schema] = time.monotonic() + SET_ASIDE_S
        return (
            f"it does not come to an end within {LIMIT_S:g} s of computing, and is not asked for "
            f"{SET_ASIDE_S:g} s. Make its patterns, references and uniqueItems simpler"
        )

    def _answer(self, question: bytes) -> bytes:
        """A line, or what there was of it when the process ended. Raises OSError."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(WAIT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(question)
            process.stdin.flush()
            return process.stdout.readline()
        finally:
            timer.cancel()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self._end()  # killed from outside: no question's fault
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def _end(self) -> int:
        """Its exit code. Without questions it ends by itself."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


INSPECTOR = Inspector()

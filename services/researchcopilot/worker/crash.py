"""An isolated run whose process ended before its agent did: what a person is told of it."""

import signal

from researchcopilot.core.errors import AgentCrashed

_BROKEN = "A native library that it uses is broken, or was given what it cannot take"
_BROKEN_OR_FULL = f"{_BROKEN}, or it got no more memory (RC_WORKER_MEMORY_LIMIT_MB)"
_SIGNALS = {
    signal.SIGSEGV: _BROKEN_OR_FULL,
    signal.SIGBUS: _BROKEN_OR_FULL,
    signal.SIGABRT: _BROKEN_OR_FULL,
    signal.SIGILL: _BROKEN,
    signal.SIGFPE: _BROKEN,
    signal.SIGKILL: (
        "Most likely the kernel, out of memory: give the worker more, or set "
        "RC_WORKER_MEMORY_LIMIT_MB, so that the agent gets a MemoryError first"
    ),
}


def how(code: int) -> str:
    """One word for it, for a metric: the signal's name, or `exit`."""
    return signal.Signals(-code).name if code < 0 else "exit"


def crashed(code: int, started: bool) -> AgentCrashed:
    """From an exit code, negative for a signal."""
    what = f"exited with code {code}"
    why = "Something in it called os._exit(), or ended the interpreter"
    if code < 0:
        number = signal.Signals(-code)
        what = f"was ended by {number.name}"
        why = _SIGNALS.get(number, "Somebody sent it that signal")
    if not started:
        what += " before the agent began"
        why = "The worker's log shows why"
    return AgentCrashed(
        f"The agent's process {what}. {why}. It ran alone: no other run was lost with it."
    )

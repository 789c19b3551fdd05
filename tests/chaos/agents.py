"""Agents that only a chaos test has: they take long, fail, and ask for patience, as they are told.

The driver writes this file and an entry point into a folder on the workers' path (`distribute`);
no product knows of it. Nothing is imported here but what every agent may import.
"""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

from researchcopilot.agents.contract import Context, SyncContext
from researchcopilot.core.errors import Permanent, RetryLater

MODULE = "chaos_agents"
NAMES = ("chaos", "chaos_sync")


async def chaos(ctx: Context, input: Any) -> Any:  # noqa: A002
    """`{"sleep": s, "parts": n, "fail": attempts, "how": "error" | "later" | "permanent"}`."""
    _fail(ctx.run.attempts, input)
    parts = []
    for number in range(input.get("parts", 1)):
        await ctx.emit("part", {"number": number})
        parts.append(await ctx.step(f"part {number}", lambda: _part(ctx, input)))
    return {"claim_no": ctx.run.claim_no, "parts": parts}


async def _part(ctx: Context, given: Any) -> int:
    await asyncio.sleep(given["sleep"] / given.get("parts", 1))
    return ctx.run.claim_no


def chaos_sync(ctx: SyncContext, input: Any) -> Any:  # noqa: A002
    """The same as a plain function, in one part."""
    _fail(ctx.run.attempts, input)
    time.sleep(input["sleep"])
    part = ctx.step("part 0", lambda: ctx.run.claim_no)
    return {"claim_no": ctx.run.claim_no, "parts": [part]}


def _fail(attempts: int, given: Any) -> None:
    if attempts > given.get("fail", 0):
        return
    if given["how"] == "permanent":
        raise Permanent("told to fail")
    if given["how"] == "later":
        raise RetryLater("told to fail", after=0.3)
    raise RuntimeError("told to fail")


def distribute(folder: Path) -> None:
    """A tiny installed distribution in `folder`, which has to be on the workers' PYTHONPATH."""
    shutil.copy(__file__, folder / f"{MODULE}.py")
    info = folder / f"{MODULE}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1\n")
    points = "\n".join(f"{name} = {MODULE}:{name}" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[researchcopilot.agents]\n{points}\n")

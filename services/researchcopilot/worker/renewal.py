"""Renewal: leases are kept from a thread and a connection of its own, so that an agent that blocks
the event loop does not lose its runs to another worker while they go on here.

It names exactly the (run, claim_no) pairs in hand, never "all mine". The same thread watches the
loop: one that is blocked for longer than RC_BLOCKED_SECONDS would keep its runs running for ever,
so the process then ends (exit 70) with a stack in its log, and the leases run out.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from researchcopilot.core.errors import Unavailable
from researchcopilot.runtime.loop import Beat
from researchcopilot.storage.renewal import Renewer
from researchcopilot.worker.hands import Ending, Hands
from researchcopilot.worker.metrics import RENEWALS, TOLD

log = logging.getLogger(__name__)
EXIT_BLOCKED = 70
GROUP = 500


class RenewalThread(threading.Thread):
    """Start it after the worker is registered; `stop` and join it last."""

    def __init__(
        self,
        renewer: Renewer,
        hands: Hands,
        worker_id: str,
        lease_s: float,
        blocked_s: float,
        loop: asyncio.AbstractEventLoop,
        unknown: Callable[[], None],
    ) -> None:
        super().__init__(name="renewal", daemon=True)
        self._renewer = renewer
        self._hands = hands
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._blocked_s = blocked_s
        self._loop = loop
        self._unknown = unknown
        self._stopping = threading.Event()
        self._looked_at = time.monotonic()
        self._answered = threading.Event()
        self._answered.set()
        self._blocked_for = 0.0
        self._told_blocked = False
        self._busy = False  # somebody had locked one of them: it is to be asked for again soon
        self.renewed = Beat()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause = self._lease_s / 3
        while not self._stopping.wait(pause):
            self._watch_loop()
            soon = min(1.0, self._lease_s / 10)
            try:
                self._renew()
                pause = soon if self._busy else self._lease_s / 3
            except Unavailable as error:
                log.warning("leases are not renewed: %s", error)
                pause = soon
            except Exception:
                log.exception("renewal failed; it is tried again")
        self._renewer.close()

    def _renew(self) -> None:
        pairs = self._hands.pairs()
        self._busy = False
        for start in range(0, len(pairs), GROUP):
            until = time.monotonic() + self._lease_s
            verdicts = self._renewer.renew(
                self._worker_id, pairs[start : start + GROUP], self._lease_s
            )
            self._busy |= "busy" in verdicts.values()
            self._on_loop(self._apply, verdicts, until)
        if not self._renewer.beat(self._worker_id):
            self._on_loop(self._unknown)
        self.renewed.mark()

    def _apply(self, verdicts: dict[tuple[str, int], str], until: float) -> None:
        for key, verdict in verdicts.items():
            RENEWALS.labels(verdict).inc()
            hand = self._hands.get(key)
            if hand is None or verdict == "busy":
                continue  # finished in between; or nothing is known, and its lease runs on
            if verdict == "lost":
                hand.end(Ending.LOST)
            else:
                hand.renewed(until)
                if verdict == "cancel":
                    if hand.ending is None:
                        TOLD.labels("renewal").inc()
                    hand.end(Ending.CANCELLED)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._stopping.set()  # the loop has ended

    def _watch_loop(self) -> None:
        """Has the loop answered since the last look? Time in which this thread did not run either
        (the process was stopped) is nobody's fault: it counts as one lease at most."""
        now = time.monotonic()
        looked_at, self._looked_at = self._looked_at, now
        if self._answered.is_set():
            self._answered.clear()
            self._blocked_for, self._told_blocked = 0.0, False
            self._on_loop(self._answered.set)
            return
        self._blocked_for += min(now - looked_at, self._lease_s)
        if self._blocked_for >= self._blocked_s:
            self._end_process()
        if self._blocked_for >= max(self._blocked_s / 4, self._lease_s) and not self._told_blocked:
            self._told_blocked = True
            log.error(
                "one of the agents blocks the event loop, for %.1f s already; its leases are kept",
                self._blocked_for,
            )

    def _end_process(self) -> None:
        log.critical(
            "the event loop has been blocked for %.0f s (RC_BLOCKED_SECONDS=%g); this worker ends "
            "with code %d so that its runs go elsewhere. An async agent does blocking work: make "
            "it a plain def, which runs in a thread. The stack follows.",
            self._blocked_for, self._blocked_s, EXIT_BLOCKED,
        )  # fmt: skip
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(EXIT_BLOCKED)

"""Open indexes of this worker: each version is fetched once and shared by the runs that read it.

A version's folder is named by its content and appears by a rename, so it is whole or not there,
whoever is killed in the middle and however many processes share the cache folder. A folder that
does not open is thrown away and fetched again.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections import OrderedDict
from pathlib import Path

from researchcopilot.agents.research.files import download, manifest
from researchcopilot.agents.research.folders import scratch
from researchcopilot.agents.research.index import FORMAT, Reader
from researchcopilot.core.errors import RetryLater
from researchcopilot.storage import indexes
from researchcopilot.storage.db import Database
from researchcopilot.storage.indexes import Files

OPEN = 8
ON_DISK = 16
log = logging.getLogger(__name__)


class Cache:
    """The indexes in one cache folder; `cache_for` gives each folder one of these."""

    def __init__(self, folder: Path) -> None:
        self._indexes = folder / "index"
        self._work = folder / "work"
        self._open: OrderedDict[str, Reader] = OrderedDict()
        self._opening: dict[str, asyncio.Task[Reader]] = {}

    async def reader(self, db: Database, workspace_id: int, version: int) -> Reader:
        """The open index of a version. Raises RetryLater if this worker cannot read it."""
        found = await indexes.files_of(db, workspace_id, version)
        if found is None:
            raise RetryLater(f"Index version {version} is gone.", after=2.0)
        version_format, files = found
        if version_format != FORMAT:
            raise RetryLater(
                f"Index version {version} has format {version_format}; this worker reads {FORMAT}. "
                "A rebuild by a worker of this version, or a newer worker, ends this.",
                after=15.0,
            )
        return await self._shared(db, files)

    async def _shared(self, db: Database, files: Files) -> Reader:
        name = manifest(files)
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        task = self._opening.get(name)
        if task is None:
            task = asyncio.create_task(self._open_first(db, name, files))
            self._opening[name] = task
            task.add_done_callback(lambda done: self._opened(name, done))
        # A run that is cancelled while it waits must not end the fetch for the others.
        return await asyncio.shield(task)

    def _opened(self, name: str, task: "asyncio.Task[Reader]") -> None:
        self._opening.pop(name, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._open[name] = task.result()
        while len(self._open) > OPEN:
            self._open.popitem(last=False)

    async def _open_first(self, db: Database, name: str, files: Files) -> Reader:
        folder = self._indexes / name
        try:
            return await asyncio.to_thread(_open, folder)
        except (OSError, ValueError) as error:
            if folder.exists():
                log.warning("index folder %s does not open and is fetched again: %s", name, error)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await self._fetch(db, files, folder)
        reader = await asyncio.to_thread(_open, folder)
        await asyncio.to_thread(self._tidy, name)
        return reader

    async def _fetch(self, db: Database, files: Files, folder: Path) -> None:
        with scratch(self._work) as temporary:
            await download(db, files, temporary)
            self._indexes.mkdir(parents=True, exist_ok=True)
            # Somebody who was faster has put the same files there.
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                _rename(temporary, folder)

    def _tidy(self, newest: str) -> None:
        """Keep the folders used last; those that are open live on until they are closed."""
        folders = sorted(self._indexes.iterdir(), key=_used, reverse=True)
        for folder in folders[ON_DISK:]:
            if folder.name != newest:
                shutil.rmtree(folder, ignore_errors=True)


_caches: dict[Path, Cache] = {}


def cache_for(folder: Path) -> Cache:
    """The one cache of this process in `folder`."""
    return _caches.setdefault(folder, Cache(folder))


def _open(folder: Path) -> Reader:
    os.utime(folder)
    return Reader(folder)


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0

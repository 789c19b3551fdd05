"""The stack's folder: data of the servers, logs, the API key. One stack at a time works in it.

The lock is `flock` on a file: the kernel lets go of it when its holders end, however they end. The
guard holds it too, so that nobody begins in a folder that is still being cleared.
"""

import fcntl
import os
import tempfile
from pathlib import Path

from researchcopilot.core.errors import ConfigError
from researchcopilot.dev.processes import until
from researchcopilot.dev.users import barrier, server_user

LOCK = "stack.lock"
ELSEWHERE = "Give another folder with --data DIR."


class Folder:
    """`path` None: a temporary one. `lock` is the open lock file, for the guard to keep."""

    def __init__(self, path: Path | None = None) -> None:
        self.temporary = path is None
        self.path = temporary_folder() if path is None else _existing(path)
        self.lock = _lock(self.path)

    def close(self) -> None:
        """Let go of the lock; a temporary folder is removed by the guard."""
        os.close(self.lock)

    def sub(self, name: str) -> Path:
        """A folder in it that is ours alone."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path


def temporary_folder() -> Path:
    """A new one in a place that the servers' user can reach."""
    user = server_user()
    for place in (tempfile.gettempdir(), "/var/tmp", "/tmp"):
        if os.access(place, os.W_OK) and barrier(Path(place), user) is None:
            path = Path(tempfile.mkdtemp(prefix="researchcopilot-", dir=place))
            path.chmod(_mode())
            return path
    raise ConfigError(
        f"No permission: neither {tempfile.gettempdir()} nor /var/tmp can be used for temporary "
        "files by both us and the servers. Set TMPDIR to a folder that everybody may enter."
    )


def _mode() -> int:
    """Nobody else looks in; as root the servers' user has to pass through."""
    return 0o711 if os.geteuid() == 0 else 0o700


def _existing(path: Path) -> Path:
    path = path.absolute()
    try:
        if not path.exists():
            path.mkdir(mode=_mode(), parents=True)
        names = os.listdir(path)
        owner = path.stat().st_uid
    except OSError as error:
        raise ConfigError(
            f"The data folder {path} cannot be used: {error.strerror}. {ELSEWHERE}"
        ) from error
    if names and LOCK not in names:
        raise ConfigError(
            f"{path} is not empty and no data folder of a stack (it has no {LOCK}); nothing is "
            f"touched. {ELSEWHERE}"
        )
    if owner != os.geteuid():
        raise ConfigError(f"The data folder {path} belongs to another user. {ELSEWHERE}")
    return path


def _lock(path: Path) -> int:
    file = path / LOCK
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"No permission to write in the data folder {path}: {error.strerror}. {ELSEWHERE}"
        ) from error
    # A holder that has died: its guard is still clearing up, which takes a moment.
    if not _try(lock) and not (_holder_is_dead(lock) and until(lambda: _try(lock), 6.0, 0.05)):
        holder = _holder(lock)
        os.close(lock)
        raise ConfigError(
            f"The data folder {path} is in use by another stack (process {holder}). "
            f"Stop that one (Ctrl-C where it runs, or kill {holder}). {ELSEWHERE}"
        )
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _try(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> int:
    text = os.pread(lock, 20, 0)
    return int(text) if text.isdigit() else 0


def _holder_is_dead(lock: int) -> bool:
    try:
        os.kill(_holder(lock), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False

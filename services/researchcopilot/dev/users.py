"""Who the servers run as. Postgres refuses to run as root; then they run as another user that is
there already (we make none), and must be able to reach their programs and their data.
"""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from researchcopilot.core.errors import ConfigError

CANDIDATES = ("nobody", "postgres", "daemon")


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int


def server_user() -> User | None:
    """The user that servers must run as; None: as whoever we are."""
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(name, found.pw_uid, found.pw_gid)
    raise ConfigError(
        "Postgres does not run as root, and none of the users "
        f"{', '.join(CANDIDATES)} exists here. Run this as an ordinary user."
    )


def barrier(path: Path, user: User | None) -> Path | None:
    """The first folder on the way to `path` that `user` may not enter; None: it can be reached."""
    if user is None:
        return None
    whole = path.resolve()
    for folder in [*reversed(whole.parents), *([whole] if whole.is_dir() else [])]:
        if not _may_enter(folder.stat(), user):
            return folder
    return None


def _may_enter(status: os.stat_result, user: User) -> bool:
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def give(path: Path, user: User | None) -> None:
    """Make `path` and what is in it belong to `user`."""
    if user is None:
        return
    for found in (path, *path.rglob("*")):
        os.chown(found, user.uid, user.gid, follow_symlinks=False)

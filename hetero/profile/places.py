"""Where profiles are kept: a file for each machine, in the user's cache directory.

Nodes of a cluster share a home directory, and a batch job gets other cores and another card.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

from hetero import paths
from hetero.imports import load
from hetero.profile import validity

_MOST = 32  # files that are read, the newest ones


def default_path() -> Path:
    """Where this machine's profile is kept.

    That is the file that ``HETERO_PROFILE`` names, or one in the user's cache directory, named by a
    hash of what makes this machine.
    """
    named = os.environ.get("HETERO_PROFILE")
    return Path(named) if named else _folder() / f"{_identity()}.json"


def stored() -> list[Path]:
    """The files that may hold a profile of this machine, the newest first.

    With ``HETERO_PROFILE`` there is one.
    """
    named = os.environ.get("HETERO_PROFILE")
    if named:
        candidates = [Path(named)]
    else:
        try:
            names = sorted(os.listdir(_folder()))
        except OSError:
            names = []
        candidates = [_folder() / name for name in names if name.endswith(".json")]
    dated = [(_changed(path), path) for path in candidates]
    there = [(date, path) for date, path in dated if date is not None]
    return [path for _, path in sorted(there, reverse=True)[:_MOST]]


def place(path: str | os.PathLike[str] | None = None) -> Path:
    """The file of a profile to store, with the user's own links resolved; its folder is made.

    Raises
    ------
    OSError
        If nothing can be stored there.
    """
    tempfile = load("tempfile")
    target = Path(path) if path is not None else default_path()
    # In a shared folder a link of another user could point to a file of this one.
    if target.is_symlink() and os.lstat(target).st_uid in (os.geteuid(), 0):
        target = Path(os.path.realpath(target))
    for folder in (target.parent.parent, target.parent):  # the cache directory is private too
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    tempfile.TemporaryFile(dir=target.parent).close()
    return target


def _folder() -> Path:
    return paths.cache_directory() / "profiles"


def _identity() -> str:
    """A hash of what makes this machine."""
    text = json.dumps(validity.identity(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _changed(path: Path) -> float | None:
    """When a file changed; None where there is none, 0 where it cannot be read."""
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        return None if error.errno == errno.ENAMETOOLONG else 0.0

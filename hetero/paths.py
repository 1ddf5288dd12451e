"""Where hetero keeps files, and which files only this user can have written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

ABANDONED = 3600.0  # seconds after which no process still writes a temporary file
TEMPORARY = ".hetero-tmp"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # in this file system
_refused: set[Path] = set()

log = logging.getLogger("hetero")


def cache_directory() -> Path:
    """The user's cache directory for hetero; it is made by the first write, private (0700).

    It lies in ``XDG_CACHE_HOME`` or in the home directory. Without either it lies in the system's
    folder for temporary files.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # its standard has relative ones ignored
        return Path(base) / "hetero"
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        return Path(home) / ".cache" / "hetero"
    return Path(tempfile.gettempdir()) / f"hetero-{os.getuid()}"


def private_folder(*names: str, root: Path | None = None) -> Path | None:
    """A folder below the cache directory that is this user's alone; made where it is not there.

    Its files can be trusted: no other user could have written them.

    Parameters
    ----------
    *names : str
        The folder's name, and those of the folders that it lies in.
    root : Path, optional
        Another folder than `cache_directory`.

    Returns
    -------
    Path or None
        None where it cannot be made, or where another user may have written: then a line is logged.
    """
    folder = cache_directory() if root is None else root
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in ("", *names):
            folder /= part
            folder.mkdir(exist_ok=True, mode=0o700)
            obstacle = distrust(folder)
            if obstacle is not None:
                if folder not in _refused:
                    _refused.add(folder)
                    log.warning("the folder %s is not used: %s", folder, obstacle)
                return None
    except OSError as error:
        log.info("nothing can be kept in %s: %s", folder, error)
        return None
    return folder


def distrust(path: Path) -> str | None:
    """Why others than this user (and root) may have written a file or folder; None if only they.

    Raises
    ------
    OSError
        If it cannot be looked at.
    """
    for info in (os.lstat(path), os.stat(path)):  # a link, and its target
        if (obstacle := _others(info)) is not None:
            return obstacle
    above = os.stat(path.parent)
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        return f"anybody may replace it (mode {stat.S_IMODE(above.st_mode):o} of {path.parent})"
    return None


def _others(info: os.stat_result) -> str | None:
    """Why others than this user (and root) may have written a file; None if only they."""
    if info.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {info.st_uid}"
    if not stat.S_ISLNK(info.st_mode) and info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(info.st_mode):o})"
    return None


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Put a file in place as a whole, or leave what is there.

    Parameters
    ----------
    path : Path
        In a folder that is there.
    content : bytes
    durable : bool
        Whether it must outlast a loss of power right after.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    handle, temporary = tempfile.mkstemp(TEMPORARY, f"{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises
    ------
    ValueError
        If it is something else (a pipe would never end), or longer.
    OSError
        If it cannot be read.
    """
    with opened(path) as file:
        content, size = file.read(most + 1), os.fstat(file.fileno()).st_size
    if len(content) > most:
        raise ValueError(f"{os.fspath(path)} must have at most {most} bytes, got {size}")
    return content


def opened(path: str | os.PathLike[str], flags: int = 0) -> BinaryIO:
    """A regular file to read bytes from; raises as `read_file`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise ValueError(f"{os.fspath(path)} must be a regular file")


def read_own_file(path: Path) -> bytes:
    """The content of a regular file that only this user (or root) can have written.

    The opened file is checked, so that it cannot be replaced between check and use.

    Raises
    ------
    ValueError
        If others may have written it, or if it is a link or anything else but a regular file.
    OSError
        If it cannot be read.
    """
    try:
        opening = opened(path, os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link") from None
        raise
    with opening as file:
        if (obstacle := _others(os.fstat(file.fileno()))) is not None:
            raise ValueError(obstacle)
        return file.read()


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[int | None]:
    """Hold a lock among processes; the file is made where it is not there, and stays.

    The block gets the file's handle; or None where the file system has no locks, so that others may
    be in it too. A process that inherits the handle holds the lock as well, until both close it.

    Parameters
    ----------
    path : Path
    waiting : callable, optional
        Called once if another process holds the lock, before waiting for it.

    Raises
    ------
    OSError
        If the file cannot be opened, or is a link or anything but a regular file.
    """
    # Not through a link, and without truncation: it may point to another file.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "the lock must be a regular file", str(path))
        held: int | None = handle
        try:
            _lock(handle, waiting)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.info("%s cannot be locked: %s", path, error)
            held = None
        try:
            yield held
        finally:
            # Otherwise a forked child, which has the file open too, would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _lock(handle: int, waiting: Callable[[], None] | None) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is not None:
            waiting()
        fcntl.flock(handle, fcntl.LOCK_EX)


def sweep(folder: Path, name: str | None = None, seconds: float = ABANDONED) -> None:
    """Remove the temporary files that `replace_file` left where its process was killed.

    Parameters
    ----------
    folder : Path
    name : str, optional
        Only those for the file of this name.
    seconds : float
        How old they must be.
    """
    target = ".+" if name is None else re.escape(name)
    ours = re.compile(rf"{target}\.[a-z0-9_]+{re.escape(TEMPORARY)}", re.DOTALL)
    try:
        for entry in os.scandir(folder):
            if not ours.fullmatch(entry.name):
                continue
            if time.time() - entry.stat(follow_symlinks=False).st_mtime >= seconds:
                os.unlink(entry.path)
    except OSError as error:  # another process sweeps, too, or access is denied
        log.debug("%s was not swept: %s", folder, error)

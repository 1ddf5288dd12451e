"""Where hetero keeps files, which of them are the user's own for sure; a cache of compiled code.

The cache is in a folder that is this user's alone (`private_folder`), and each file begins with a
digest of its name and content. A file that was damaged, renamed or made by another user is not
read. Where nothing can be kept, everything works, and is compiled again in the next process.

File names depend on sources, compilers and processors, and outdated ones cannot be recognised. So
the oldest files are removed beyond a total size.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = ".hetero-tmp"
_BYTES = 32  # of a digest
_MOST = 256 << 20  # bytes of one kind
_refused: set[Path] = set()
_swept: set[Path] = set()

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
    """A folder below the cache directory (or ``root``) that is this user's alone, by its name and
    those of the folders that it lies in; made where it is not there.

    Its files can be trusted: no other user could have written them. None where it cannot be made,
    or where another user may have written: then a line is logged.
    """
    folder = cache_directory() if root is None else root
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in ("", *names):
            folder /= part
            folder.mkdir(exist_ok=True, mode=0o700)
            if (obstacle := distrust(folder)) is not None:
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
    obstacle = _others(os.lstat(path)) or _others(os.stat(path))  # of a link, and its target
    above = os.stat(path.parent).st_mode
    if obstacle is None and above & stat.S_IWOTH and not above & stat.S_ISVTX:
        return f"anybody may replace it (mode {stat.S_IMODE(above):o} of {path.parent})"
    return obstacle


def _others(info: os.stat_result) -> str | None:
    """Why others than this user (and root) may have written a file; None if only they."""
    if info.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {info.st_uid}"
    if not stat.S_ISLNK(info.st_mode) and info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(info.st_mode):o})"
    return None


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place as a whole, in a folder that is there, or leave what is there."""
    handle, temporary = tempfile.mkstemp(_TEMPORARY, f"{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # Ctrl-C may come right after it was renamed
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


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock among processes; the file is made where it is not there, and stays.

    ``waiting`` is called once if another process holds the lock, before waiting for it. OSError if
    the file cannot be opened, or its file system has no locks.
    """
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child has the file open, too


def cached(kind: str, name: str) -> bytes | None:
    """The content of an entry of the cache; None where there is none, or its digest does not match.

    Parameters
    ----------
    kind : str
        Category, and name of the subdirectory: "cubin".
    name : str
        A file's name, which says all that the content depends on.
    """
    folder = private_folder(kind)
    if folder is None:
        return None
    try:
        with opened(folder / name, os.O_NOFOLLOW) as file:
            info, content = os.fstat(file.fileno()), file.read()
    except (OSError, ValueError):
        return None
    # Put there while others could write to the folder, or damaged.
    if (obstacle := _others(info)) or content[:_BYTES] != _digest(name, content[_BYTES:]):
        log.info("the file %s is not used: %s", folder / name, obstacle or "it is damaged")
        return None
    return content[_BYTES:]


def cache(kind: str, name: str, content: bytes) -> None:
    """Keep bytes under a name for `cached`; a failure to write is only logged."""
    folder = private_folder(kind)
    if folder is None:
        return
    try:
        if folder not in _swept:
            _swept.add(folder)
            with contextlib.suppress(OSError):
                _make_room(folder)
        replace_file(folder / name, _digest(name, content) + content)
    except OSError as error:
        log.info("%s cannot be kept in %s: %s", name, folder, error)


def _make_room(folder: Path) -> None:
    """Remove the oldest files beyond the total size."""
    total = 0
    with os.scandir(folder) as entries:
        files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
    for info, path in sorted(files, key=lambda one: one[0].st_mtime, reverse=True):
        total += info.st_size
        if total > _MOST:
            Path(path).unlink(missing_ok=True)  # another process may have been faster


def _digest(name: str, content: bytes) -> bytes:
    """The digest of an entry, of `_BYTES` bytes."""
    return hashlib.blake2b(name.encode() + b"\0" + content, digest_size=_BYTES).digest()

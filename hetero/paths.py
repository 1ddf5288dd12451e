"""Where hetero keeps files, which of them are the user's own for sure; a cache of compiled code.

The cache is in a folder that is this user's alone (`private_folder`), and each file begins with a
keyed digest of its name and content. A file that was damaged, renamed or made by another user is
not read. Where nothing can be kept, everything works, and is compiled again in the next process.

File names depend on sources, compilers and processors, and outdated ones cannot be recognised. A
file's time of modification is that of its last use; files that were not used for long are removed,
and the oldest beyond a total size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
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
_BYTES = 32  # of a digest, and of the key
_UNUSED = 30 * 86400.0  # seconds without use, after which a file of the cache is removed
_MOST = 256 << 20  # bytes of one kind
_NOTED = 86400.0  # seconds: a file's time of use is not updated more often
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
    """Put a file in place as a whole, in a folder that is there, or leave what is there (OSError).

    A ``durable`` one outlasts a loss of power right after.
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

    The opened file is checked, so that it cannot be replaced between check and use. ValueError if
    others may have written it, or if it is a link or anything else but a regular file.
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
    ``waiting`` is called once if another process holds the lock, before waiting for it. OSError if
    the file cannot be opened, or is a link or anything but a regular file.
    """
    # Not through a link, and without truncation: it may point to another file.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "the lock must be a regular file", str(path))
        held: int | None = handle
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
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


def sweep(folder: Path, name: str, seconds: float) -> None:
    """Remove temporary files that `replace_file` left for the file ``name`` where its process was
    killed, if they are that old."""
    ours = re.compile(rf"{re.escape(name)}\.[a-z0-9_]+{re.escape(TEMPORARY)}", re.DOTALL)
    try:
        for entry in os.scandir(folder):
            if not ours.fullmatch(entry.name):
                continue
            if time.time() - entry.stat(follow_symlinks=False).st_mtime >= seconds:
                os.unlink(entry.path)
    except OSError as error:  # another process sweeps, too, or access is denied
        log.debug("%s was not swept: %s", folder, error)


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
        content = read_own_file(folder / name)
        key = read_own_file(folder.parent / "key")
    except OSError:
        return None
    except ValueError as error:  # put there while others could write to the folder
        log.info("the file %s or its key is not used: %s", folder / name, error)
        return None
    digest, content = content[:_BYTES], content[_BYTES:]
    if len(key) != _BYTES or digest != _digest(key, name, content):
        log.info("the file %s is damaged and is not used", folder / name)
        return None
    _note(folder / name)
    return content


def cache(kind: str, name: str, content: bytes) -> None:
    """Keep bytes under a name for `cached`; a failure to write is only logged."""
    folder = private_folder(kind)
    if folder is None:
        return
    try:
        if folder not in _swept:
            _swept.add(folder)
            _remove_unused(folder)
        replace_file(folder / name, _digest(_key(folder.parent), name, content) + content)
    except OSError as error:
        log.info("%s cannot be kept in %s: %s", name, folder, error)


def _note(path: Path) -> None:
    """Update a file's time of use."""
    with contextlib.suppress(OSError):  # it may belong to root, who may write here
        if time.time() - path.stat().st_mtime > _NOTED:
            os.utime(path)


def _remove_unused(folder: Path) -> None:
    """Remove files that were not used for long, those that killed processes did not finish, and the
    oldest ones beyond the total size."""
    now, total = time.time(), 0
    try:
        with os.scandir(folder) as entries:
            files = [
                (entry.stat(follow_symlinks=False), entry.path)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock")
            ]
        for info, path in sorted(files, key=lambda one: one[0].st_mtime, reverse=True):
            total += info.st_size
            longest = ABANDONED if path.endswith(TEMPORARY) else _UNUSED
            if now - info.st_mtime > longest or total > _MOST:
                Path(path).unlink(missing_ok=True)  # another process may have been faster
    except OSError as error:
        log.debug("%s was not cleared of what is unused: %s", folder, error)


def _digest(key: bytes, name: str, content: bytes) -> bytes:
    """The keyed digest of an entry, of `_BYTES` bytes."""
    digest = hashlib.blake2b(name.encode() + b"\0", digest_size=_BYTES, key=key)
    digest.update(content)
    return digest.digest()


def _key(folder: Path) -> bytes:
    """The user's key, made where there is none; what was made with another one is lost."""
    path = folder / "key"
    with locked(folder / "key.lock"):
        with contextlib.suppress(FileNotFoundError, ValueError):  # others may know it
            if len(key := read_own_file(path)) == _BYTES:
                return key
        replace_file(path, key := os.urandom(_BYTES))
    return key

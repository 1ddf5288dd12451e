"""A cache on disk of compiled code for the next process, with authenticated files.

It is kept in a folder that is this user's alone (`paths.private_folder`), and each file begins with
a keyed digest of its name and content. A file that was damaged, renamed or made by another user is
not read. Where nothing can be kept, everything works, and is compiled again in the next process.

File names depend on sources, compilers and processors, and outdated ones cannot be recognised. A
file's time of modification is that of its last use; files that were not used for long are removed,
and the oldest beyond a total size.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from hetero import paths

_BYTES = 32  # of a digest, and of the key
_UNUSED = 30 * 86400.0  # seconds without use, after which a file is removed
_MOST = 256 << 20  # bytes of one kind: all loops of one version take 7 MB
_NOTED = 86400.0  # seconds: a file's time of use is not updated more often
_swept: set[Path] = set()

_NOT_KEPT = (".lock", paths.TEMPORARY)  # suffixes of files that are no entries

log = logging.getLogger("hetero")


def read(kind: str, name: str, root: Path | None = None) -> bytes | None:
    """The content of an entry; None where there is none, or its digest does not match.

    Parameters
    ----------
    kind : str
        Category, and name of the subdirectory: "cubin".
    name : str
        A file's name, which says all that the content depends on.
    root : Path, optional
        Another folder than the user's cache directory.
    """
    folder = paths.private_folder(kind, root=root)
    if folder is None:
        return None
    try:
        content = paths.read_own_file(folder / name)
        key = paths.read_own_file(folder.parent / "key")
    except OSError:
        return None
    except ValueError as error:  # put there while others could write to the folder
        log.info("the file %s or its key is not used: %s", folder / name, error)
        return None
    digest, content = content[:_BYTES], content[_BYTES:]
    if len(key) != _BYTES or not hmac.compare_digest(digest, _digest(key, name, content)):
        log.info("the file %s is damaged and is not used", folder / name)
        return None
    _note(folder / name)
    return content


def in_use(kind: str, names: Iterable[str], root: Path | None = None) -> bool:
    """Whether all of these are there; if so, this counts as a use of each."""
    folder = paths.private_folder(kind, root=root)
    return folder is not None and all(_note(folder / name) for name in names)


def write(kind: str, name: str, content: bytes, root: Path | None = None) -> None:
    """Keep bytes under a name for `read`; a failure to write is only logged."""
    folder = paths.private_folder(kind, root=root)
    if folder is None:
        return
    try:
        if folder not in _swept:
            _swept.add(folder)
            paths.sweep(folder)
            _remove_unused(folder)
        paths.replace_file(folder / name, _digest(_key(folder.parent), name, content) + content)
    except OSError as error:
        log.info("%s cannot be kept in %s: %s", name, folder, error)


def _note(path: Path) -> bool:
    """Update a file's time of use; gives whether it is there."""
    try:
        if time.time() - path.stat().st_mtime > _NOTED:
            os.utime(path)
    except OSError:
        return path.exists()  # it may belong to root, who may write here
    return True


def _remove_unused(folder: Path) -> None:
    """Remove files that were not used for long, and the oldest ones beyond the total size."""
    now, total = time.time(), 0
    try:
        with os.scandir(folder) as entries:
            files = [
                (entry.stat(follow_symlinks=False), entry.path)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.endswith(_NOT_KEPT)
            ]
        for info, path in sorted(files, key=lambda one: one[0].st_mtime, reverse=True):
            total += info.st_size
            if now - info.st_mtime > _UNUSED or total > _MOST:
                Path(path).unlink(missing_ok=True)  # another process may have been faster
    except OSError as error:
        log.debug("%s was not cleared of what is unused: %s", folder, error)


def _digest(key: bytes, name: str, content: bytes) -> bytes:
    """The keyed digest of an entry, of `_BYTES` bytes."""
    digest = hashlib.blake2b(name.encode() + b"\0", digest_size=_BYTES, key=key)
    digest.update(content)
    return digest.digest()


def _key(folder: Path) -> bytes:
    """The user's key, made where there is none."""
    path, new = folder / "key", secrets.token_bytes(_BYTES)
    try:
        key = paths.read_own_file(path)
    except FileNotFoundError:
        _put_first(path, new)
        return path.read_bytes()
    except ValueError:  # others may know it
        key = b""
    if len(key) == _BYTES:
        return key
    paths.replace_file(path, new)  # what was made with the old one is lost
    return path.read_bytes()


def _put_first(path: Path, content: bytes) -> None:
    """Create a file atomically, unless another process was faster."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{paths.TEMPORARY}")
    paths.replace_file(temporary, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # no links in this file system
        os.replace(temporary, path)
        return
    os.unlink(temporary)

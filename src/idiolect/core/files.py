"""Files that are whole or absent: written beside their place, synced, then renamed over it.

Only a regular file is ever replaced, and only a regular file is ever deleted: a link, a device or a
folder that lies where a file should be belongs to somebody else.
"""

import errno
import fnmatch
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from idiolect.errors import UserError

TEMPORARY, ROOM = ".tmp~", ".room~"
_DRAFT = re.compile(rf"\.(?P<of>.+)\.\d+({re.escape(TEMPORARY)}|{re.escape(ROOM)})")
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def kind(path: Path) -> str | None:
    """What lies at `path` itself, in words (a link is not followed); None where nothing does."""
    try:
        return _KINDS[stat.S_IFMT(os.lstat(path).st_mode)]
    except FileNotFoundError:
        return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it becomes `path`, on failure `path` stays as it was."""
    if (found := kind(path)) not in (None, "a file"):
        target = f" to {os.readlink(path)}" if found == "a symbolic link" else ""
        raise UserError(
            f"{path} is {found}{target}, and only a regular file is replaced; give another name"
        )
    draft = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield draft
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        _discard(draft)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is synced (not possible everywhere)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], private: bool = False) -> None:
    """A safetensors file, `private`: for its owner only. It cannot hold views of shared memory, so
    those are copied."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    # safetensors makes a temporary file of its own, whose name we do not know: in a room of ours.
    with replacing(path) as draft, _room(draft) as room:
        try:
            save_file(plain, room / "tensors")
        except SafetensorError as error:
            # safetensors hides the operating system's errno in its message
            full = "os error 28" in str(error) or "No space" in str(error)
            code = errno.ENOSPC if full else errno.EIO
            raise OSError(code, str(error), str(path)) from error
        if not private:  # safetensors makes files that only their owner can read
            (room / "tensors").chmod(room.stat().st_mode & 0o666)
        os.replace(room / "tensors", draft)


@contextmanager
def _room(draft: Path) -> Iterator[Path]:
    """A folder beside a draft, for as long as it is written."""
    room = draft.with_name(draft.name.removesuffix(TEMPORARY) + ROOM)
    _discard(room)  # of a killed process that had our number
    room.mkdir()
    try:
        yield room
    finally:
        _discard(room)


def _discard(draft: Path) -> None:
    """Delete a draft or its room, which has nothing but files in it."""
    with suppress(OSError):
        if kind(draft) == "a folder":
            for inside in list(os.scandir(draft)):
                os.unlink(inside.path)
            draft.rmdir()
        else:
            draft.unlink(missing_ok=True)


def belongs(name: str, *names: str) -> bool:
    """Whether this is the name of one of the files `names` (`*` and `?` as in a shell), or of a
    draft of one."""
    draft = _DRAFT.fullmatch(name)
    return any(fnmatch.fnmatchcase(draft["of"] if draft else name, known) for known in names)


def remove_drafts(folder: Path, *names: str) -> None:
    """Remove what a killed process left half written of the files `names` right in `folder`.
    Drafts of other files are not ours to remove."""
    if kind(folder) != "a folder":
        return
    for entry in list(os.scandir(folder)):
        if _DRAFT.fullmatch(entry.name) and belongs(entry.name, *names) and not entry.is_symlink():
            _discard(Path(entry.path))

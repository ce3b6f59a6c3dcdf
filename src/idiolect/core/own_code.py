"""Classes and functions of the user's own, named `file.py:Class` or `module:Class`.

Importing a module runs it. So a name is loaded only if it is among those that were allowed, which
is decided before anything is imported: neither a settings file nor the run of a stranger can allow
what it names. What is loaded must be a class of the kind that is wanted before it is called.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from idiolect.core.text import reason
from idiolect.errors import UserError

T = TypeVar("T")
FROM_FILE = "idiolect_own_"  # how modules of files are called
OWN = "your own code"
_USER_CODE: dict[str, str] = {}  # modules that users wrote or installed, and how those are called


def is_own(name: object) -> bool:
    """Whether a name of a config means own code and not something that is registered."""
    return isinstance(name, str) and ":" in name


def is_function(name: object) -> bool:
    """Whether a name is written as `file.py:Name` or `module:Name`; a path may hold a colon too."""
    return isinstance(name, str) and bool(re.fullmatch(r"(.+\.py|[\w.]+):[^\W\d]\w*", name))


def whole(name: str) -> str:
    """The name with the whole path of its file, so that it means the same from every folder."""
    file = _written_file(name)
    return name if file is None else f"{file}:{_class_name(name)}"


def short(name: str) -> str:
    """The name without the folder of its file: what means the same on two machines."""
    file = _written_file(name)
    return name if file is None else f"{file.name}:{_class_name(name)}"


def called(name: str) -> str:
    """What people call it: own code by its class, everything else by its name."""
    return _class_name(name) if is_function(name) else name


def require(name: str, allowed: Collection[str], source: str) -> None:
    """Refuse own code that nobody allowed; `source` is what names it."""
    if whole(name) not in {whole(one) for one in allowed}:
        raise UserError(
            f"{source} names code, '{name}', which nobody allowed to run; if you trust it, add "
            f"--allow-code {name}"
        )


def load(name: str, kind: type[T], what: str, allowed: Collection[str] = ()) -> type[T]:
    """The class of this name, a subclass of `kind`. `what` is the setting: 'model'."""
    found = load_any(name, what, allowed)
    if not isinstance(found, type) or not issubclass(found, kind):
        raise UserError(
            f"{what} '{name}' is not a class of the kind that is needed: a subclass of "
            f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
        )
    return found


def load_function(name: str, what: str, allowed: Collection[str] = ()) -> Callable[..., Any]:
    """The function of this name."""
    found = load_any(name, what, allowed)
    if not callable(found):
        raise UserError(f"{what} '{name}' is no function; name one that returns the data")
    made: Callable[..., Any] = found
    return made


def load_any(name: str, what: str, allowed: Collection[str] = ()) -> Any:
    """What this name means; of which kind it is, is for the caller to check before it is used."""
    require(name, allowed, f"{what}.name")
    file = _written_file(name)
    try:
        module = import_module(_place(name)) if file is None else _run_file(file)
        found = getattr(module, _class_name(name))
    except OSError as error:
        raise UserError(f"{what} '{name}': cannot read {file}: {error.strerror}") from None
    except (Exception, SystemExit) as error:  # own code may fail in every way
        fix = "put the module on PYTHONPATH" if file is None else "mend the file"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"cannot import {what} '{name}': {reason}; {fix}") from None
    is_user_code(module.__name__, OWN)
    return found


def from_file(kind: type) -> bool:
    """Whether a class was declared in a file that was named as `file.py:Class`."""
    return kind.__module__.startswith(FROM_FILE)


def is_user_code(module: str, whose: str) -> None:
    """Note that a module is no part of Idiolect, so that its faults are not taken for ours."""
    _USER_CODE[module] = whose


def begin() -> None:
    """Nothing of the user's own is in use yet; packages that were loaded stay known."""
    for module in [name for name, whose in _USER_CODE.items() if whose == OWN]:
        del _USER_CODE[module]


def in_use() -> bool:
    """Whether code of the user's own was loaded."""
    return OWN in _USER_CODE.values()


def fault(error: BaseException) -> tuple[str, str] | None:
    """Whose code failed and where: the innermost frame of what users wrote or installed; None where
    there is none."""
    place, at = None, error.__traceback__
    while at is not None:
        module = str(at.tb_frame.f_globals.get("__name__"))
        if module in _USER_CODE:
            place = (_USER_CODE[module], f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}")
        at = at.tb_next
    return place


@contextmanager
def running(what: str) -> Iterator[None]:
    """Own code may fail in every way: in one line, or with its own error where the command line
    says the place and keeps the traceback. `what`: "loss 'huber'"."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        place = fault(error)
        if place and not isinstance(error, OSError):
            raise
        at = f" at {place[1]}" if place else ""
        told = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{what} failed{at}: {told}; mend the function") from error


def fingerprint(name: str) -> str:
    """SHA-256 of the file that holds the class, found without running anything; empty where there
    is none, as for a module that is built in."""
    file = _written_file(name) or _module_file(_place(name))
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file is not None else ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise UserError(f"'{name}': cannot read its file: {reason}") from None


def _run_file(file: Path) -> ModuleType:
    """The module of a file. Its text is run as it was read, never a compiled copy beside it."""
    source = file.read_bytes()
    key = f"{FROM_FILE}{hashlib.sha256(bytes(file) + source).hexdigest()[:16]}"
    if key not in sys.modules:
        module = ModuleType(key)
        module.__file__ = str(file)
        sys.modules[key] = module  # dataclasses look their module up
        try:
            exec(compile(source, str(file), "exec"), vars(module))  # noqa: S102  allowed by name
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]


def _module_file(module: str) -> Path | None:
    """Where a module lies. Its packages are searched, not imported."""
    path: list[str] | None = None
    parts = module.split(".")
    spec = None
    for number in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:number]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _written_file(name: str) -> Path | None:
    """The file of `file.py:Class`; None for `module:Class`."""
    place = _place(name)
    try:
        return Path(place).expanduser().absolute() if place.endswith(".py") else None
    except RuntimeError:
        raise UserError(f"'{name}': there is no such home folder; write the path out") from None


def _place(name: str) -> str:
    return name.rpartition(":")[0]


def _class_name(name: str) -> str:
    return name.rpartition(":")[2]

"""Read and write text files: refused in one line, written whole or not at all, and by one process at a time.

Knows files, where the package's own are, and how two records differ. Knows nothing of what they mean.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from filelock import FileLock, Timeout

from setblock.errors import ParameterError, SetBlockError, one_line

ASSETS = Path(__file__).parent / "assets"
"""Folder of what comes with the package: the bundled model, and what named models add."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors that say that a disk, or what one may have of it, is full."""

LOCK = ".lock"
"""Name of the hidden file in a folder that one process at a time may write to."""

FACTS_FILE = "facts.json"
"""In a folder with a delta or an adapter: how the checkpoint that it makes is decoded."""


def read_text(path: Path, *, what: str = "") -> str:
    """Return the text of a file, without a byte order mark, or raise `SetBlockError` if it can't be read, or is not valid
    UTF-8. The message says `what` is in it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SetBlockError(f"can't read {f'{what} {path}'.strip()}: {error.strerror}") from error
    except UnicodeError as error:
        raise SetBlockError(f"{what} {path} must be valid UTF-8".strip()) from error


@contextmanager
def writing(path: Path, *, what: str = "") -> Iterator[None]:
    """Raise `SetBlockError` where a file or a folder can't be written while active. The message says `what` is in it."""
    try:
        yield
    except OSError as error:
        raise SetBlockError(f"can't write {f'{what} {path}'.strip()}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.strerror is not None:
        return error.strerror
    if isinstance(error, shutil.Error):  # of many files
        return str(error.args[0][0][-1])
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # of NumPy
        return "only a part could be written, is the disk full?"
    return one_line(error)


@contextmanager
def only_writer(path: Path, *, advice: str = "wait for it, or name another file") -> Iterator[None]:
    """Hold the lock of a file, or of a folder that exists, while active: that of a hidden file next to the one or in the other,
    which stays. Raise `SetBlockError` with the `advice` at once if another process holds it. A process that ends, however it
    ends, holds none."""
    lock = path / LOCK if path.is_dir() else path.with_name(f".{path.name}{LOCK}")
    with writing(path):
        try:
            held = FileLock(lock).acquire(blocking=False)
        except Timeout as error:
            raise SetBlockError(f"another process is writing to {path}: {advice}") from error
    with held:
        yield


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give where to make a folder, which becomes `folder` once it is whole, or raise `SetBlockError` if it can't be written."""
    with writing(folder), TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        whole = Path(temporary) / folder.name
        yield whole
        os.replace(whole, folder)


def write_whole(path: Path, text: str) -> None:
    """Write a file, which appears or changes once it is whole. One that is there keeps its mode. Raise `SetBlockError` if it
    can't be written."""
    temporary = path.with_name(f".{path.name}.writing")
    with writing(path):
        try:
            temporary.write_text(text, encoding="utf-8")
            if path.exists():
                temporary.chmod(path.stat().st_mode)
            os.replace(temporary, path)
        finally:
            if temporary.exists():
                temporary.unlink()


def differences(recorded: Any, wanted: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys at which two records differ, with both values."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        for name in sorted(recorded.keys() | wanted.keys()):
            yield from differences(recorded.get(name), wanted.get(name), f"{key}.{name}".lstrip("."))
    elif recorded != wanted:
        yield key, recorded, wanted


def module_of(path: Path) -> ModuleType:
    """Run a Python file, or a package's `__init__.py`, that a user names, and return its module. It may import other files of
    its folder; what is installed comes before them. Raise `ParameterError` if there is no such file, or its code fails."""
    if not path.is_file():
        raise ParameterError(f"there is no file {path}")
    is_package = path.name == "__init__.py"
    # Its path is in its name, so that two files of one name are two modules
    name = f"setblock_file_{abs(hash(path.resolve()))}"
    spec = spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)] if is_package else None)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look their module up there
    if not is_package and str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ParameterError(f"can't load {path}: {type(error).__name__}: {error}") from error
    return module

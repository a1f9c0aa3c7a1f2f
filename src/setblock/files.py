"""Reading and writing of files: errors of one line, files written completely or not at all, and by one process at a time.

The module also has the folder of the package's own files, the comparison of two records, and the import of a user's file.
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
"""Folder of the files that come with the package: the bundled model, and additions of named models."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the errors for a full disk or an exhausted quota."""

LOCK = ".lock"
"""Name of the hidden lock file in a folder that one process at a time may write to."""

FACTS_FILE = "facts.json"
"""Name of the file with the SBD config in a folder with a delta or an adapter."""


def is_gguf(source: str | Path) -> bool:
    """Return whether a model's name or path is that of a GGUF file."""
    return Path(source).suffix.lower() == ".gguf"


def read_text(path: Path, *, what: str = "") -> str:
    """Return the text of a file, without a byte order mark. Raise `SetBlockError`, naming `what` it contains, if it can't be
    read or is not valid UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SetBlockError(f"can't read {f'{what} {path}'.strip()}: {error.strerror}") from error
    except UnicodeError as error:
        raise SetBlockError(f"{what} {path} must be valid UTF-8".strip()) from error


@contextmanager
def writing(path: Path, *, what: str = "") -> Iterator[None]:
    """While active, raise `SetBlockError`, naming `what` it contains, if a file or a folder can't be written."""
    try:
        yield
    except OSError as error:
        raise SetBlockError(f"can't write {f'{what} {path}'.strip()}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.strerror is not None:
        return error.strerror
    if isinstance(error, shutil.Error):  # contains the errors of many files
        return str(error.args[0][0][-1])
    if re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # NumPy's message
        return "only a part could be written, is the disk full?"
    return one_line(error)


@contextmanager
def only_writer(path: Path, *, advice: str = "wait for it, or name another file") -> Iterator[None]:
    """While active, hold the lock of a file or of an existing folder: a hidden file next to the file or in the folder, which
    stays. Raise `SetBlockError` with the `advice` at once if another process holds it. A process that ends in any way releases
    its lock."""
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
    """Yield a temporary folder, which becomes `folder` once it is complete. Raise `SetBlockError` if it can't be written."""
    with writing(folder), TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        whole = Path(temporary) / folder.name
        yield whole
        os.replace(whole, folder)


def write_whole(path: Path, text: str) -> None:
    """Write a file, which appears or changes once it is complete. An existing file keeps its mode. Raise `SetBlockError` if it
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
    """Run a user's Python file, or a package's `__init__.py`, and return its module. It may import other files of its folder;
    installed packages take precedence. Raise `ParameterError` if the file does not exist or its code fails."""
    if not path.is_file():
        raise ParameterError(f"there is no file {path}")
    is_package = path.name == "__init__.py"
    # The module's name contains the path, so that two files of one name are two modules
    name = f"setblock_file_{abs(hash(path.resolve()))}"
    spec = spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)] if is_package else None)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look up their module there
    if not is_package and str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ParameterError(f"can't load {path}: {type(error).__name__}: {error}") from error
    return module

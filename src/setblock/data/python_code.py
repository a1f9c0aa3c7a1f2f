"""Python source of installed packages: real text that every machine with this package has, without any download.

Knows the standard library and site-packages, which packages are held out, and which files are copies. Knows nothing of
tokens. What there is depends on what is installed; which split a package belongs to depends on its name alone.
"""

import hashlib
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from setblock.data.splits import Split, split_of

PACKAGE_LIMIT = 1_500_000
"""Bytes that are taken of one package: the largest would otherwise be most of the text."""

_HELD_OUT_PERCENT = 8  # of all packages, for each of validation and test
_SKIPPED_PACKAGES = {
    "setblock",
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
}
_SKIPPED_FOLDERS = {"tests", "test", "testing", "__pycache__", "node_modules"}
_VENDORED = {
    "_vendor",
    "vendor",
    "_vendored",
    "vendored",
    "extern",
    "externals",
    "thirdparty",
    "third_party",
    "_distutils",
}
_SHORTEST, _LONGEST, _LONGEST_LINE = 200, 300_000, 400  # characters; longer lines or files are tables, not programs
_SAME_LINES = 0.5  # share of a held-out file's lines that makes it a copy of a training file of the same name


@dataclass(frozen=True)
class SourceFile:
    """One file. `name` is its path from the package on, such as `json/decoder.py`."""

    package: str
    name: str
    text: str


def split_of_package(package: str) -> Split:
    """The split a package belongs to: a function of its name, so that whole packages are held out."""
    return split_of(package.lower(), held_out_percent=_HELD_OUT_PERCENT)


@lru_cache(maxsize=3)
def source_files(split: Split, *, folders: tuple[Path, ...] | None = None) -> tuple[SourceFile, ...]:
    """The files of a split, by package and in an order that looks random: the same wherever the same is installed.

    Vendored packages are left out, of equal files (but for white space) all but the first, and of held-out files those that
    mostly consist of lines of a training file with the same name.

    Args:
        split: `train`, `validation` or `test`.
        folders: where packages lie; the standard library and site-packages by default.
    """
    packages = _packages(_installed() if folders is None else folders)
    wanted = [name for name in sorted(packages) if split_of_package(name) == split]
    if split == "train":
        return tuple(_distinct((file for name in wanted for file in _files_of(name, packages[name])), set()))
    trained = source_files("train", folders=folders)
    seen = {_fingerprint(file.text) for file in trained}
    by_name: dict[str, list[SourceFile]] = defaultdict(list)
    for file in trained:
        by_name[_base(file)].append(file)
    distinct = _distinct((file for name in wanted for file in _files_of(name, packages[name])), seen)
    return tuple(file for file in distinct if not _is_copy(file, by_name[_base(file)]))


def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def _packages(folders: Iterable[Path]) -> dict[str, Path]:
    """The packages and single modules that lie in folders, by name; the first of a name counts."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            is_package = path.is_dir() and (path / "__init__.py").is_file()
            is_module = path.suffix == ".py" and path.is_file()
            is_data = path.stem in _SKIPPED_PACKAGES or path.stem.startswith("_sysconfigdata")
            if (is_package or is_module) and not is_data:
                found.setdefault(path.stem, path)
    return found


def _files_of(package: str, path: Path) -> Iterator[SourceFile]:
    """A package's files, as far as `PACKAGE_LIMIT` goes."""
    paths = [path] if path.is_file() else [each for each in path.rglob("*.py") if not _is_skipped(each, path)]
    taken = 0
    for each in sorted(paths, key=lambda each: hash_order(each.relative_to(path.parent).as_posix())):
        size = each.stat().st_size
        if taken + size > PACKAGE_LIMIT:
            continue
        text = _read(each)
        if text is None:
            continue
        taken += size
        yield SourceFile(package, each.relative_to(path.parent).as_posix(), text)


def _is_skipped(path: Path, package: Path) -> bool:
    return bool((_SKIPPED_FOLDERS | _VENDORED) & set(path.relative_to(package).parts[:-1]))


def _read(path: Path) -> str | None:
    """The text of a file, or None where it is no program to learn from."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # unreadable, or of another time's encoding: there are thousands of others
        return None
    if not _SHORTEST <= len(text) <= _LONGEST:
        return None
    return None if max(map(len, text.splitlines())) > _LONGEST_LINE else text


def _distinct(files: Iterable[SourceFile], seen: set[bytes]) -> Iterator[SourceFile]:
    for file in files:
        fingerprint = _fingerprint(file.text)
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield file


def _is_copy(file: SourceFile, trained: Iterable[SourceFile]) -> bool:
    lines = _lines(file.text)
    return any(len(lines & _lines(other.text)) > _SAME_LINES * len(lines) for other in trained)


def _lines(text: str) -> set[str]:
    return {stripped for line in text.splitlines() if len(stripped := line.strip()) >= 20}


def _base(file: SourceFile) -> str:
    return file.name.rsplit("/", 1)[-1]


def _fingerprint(text: str) -> bytes:
    return hashlib.blake2b("".join(text.split()).encode(), digest_size=16).digest()


def hash_order(name: str) -> bytes:
    """An order that looks random and depends on a name alone."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()

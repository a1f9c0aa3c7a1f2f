"""Cut functions of installed packages after their docstring, for a model of code to continue.

Which there are depends on what is installed, so compare figures of one machine only. Knows Python's syntax.
Knows nothing of models. A function has no one right body, so nothing is judged.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from setblock.data.tasks.task import Split, Task, TextExample, split_of

_SHORTEST, _LONGEST = 80, 2000  # characters of a body
_CONTEXT = 1200  # characters of the file before it that go with a function, at most
_LARGEST_FILE = 100_000  # bytes; larger ones are tables
_NO_PROGRAMS = {"setblock", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}


def installed_functions(split: Split, seed: int = 0) -> Iterator[TextExample]:
    """Yield the functions that have a docstring, at most one of a file, cut after it, with what comes before them in
    their file. A package is of one split; the seed draws the order."""
    files = [(package, path) for package, path in _files() if split_of(package.lower()) == split]
    for package, path in sorted(files, key=lambda file: _hash(f"{seed or ''}{file[0]}{file[1].name}")):
        yield from _first_of(package, path)


@lru_cache(maxsize=1)
def _files() -> tuple[tuple[str, Path], ...]:
    """Return packages of the standard library and of site-packages, and the files of each."""
    paths = sysconfig.get_paths()
    found = []
    for folder in dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.stem in _NO_PROGRAMS or path.stem.startswith("_"):
                continue
            if path.suffix == ".py":
                found.append((path.stem, path))
            elif (path / "__init__.py").is_file():
                found += [(path.name, each) for each in sorted(path.rglob("*.py")) if "tests" not in each.parts]
    return tuple(found)


def _first_of(package: str, path: Path) -> Iterator[TextExample]:
    if path.stat().st_size > _LARGEST_FILE:
        return
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):  # of another version of Python, or of another encoding
        return
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        start, end = node.body[0].end_lineno, node.end_lineno
        assert start is not None
        assert end is not None
        body = "".join(lines[start:end])
        if _SHORTEST <= len(body) <= _LONGEST:
            before = "".join(lines[:start])
            cut = before.find("\n", max(0, len(before) - _CONTEXT)) + 1 if len(before) > _CONTEXT else 0
            yield TextExample(before[cut:], body, identity=package.lower())
            return


def _hash(name: str) -> bytes:
    """Return a hash, for an order that looks random and is the same wherever the same is installed."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


TASKS = (Task("installed-functions", "the body of a function of an installed package", installed_functions, raw=True),)

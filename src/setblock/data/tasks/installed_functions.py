"""Functions of installed packages, cut after their docstring: what a model of code is asked to go on with.

Which there are depends on what is installed, so compare figures of one machine only. Knows Python's syntax. Knows nothing of
models. A function has no one right body, so nothing is judged.
"""

import ast
from collections.abc import Iterator

from setblock.data.python_code import SourceFile, hash_order, source_files
from setblock.data.splits import Split
from setblock.data.tasks.task import Task, TextExample

_SHORTEST, _LONGEST = 80, 2000  # characters of a body
_CONTEXT = 1200  # characters of the file before it that go with a function, at most


def installed_functions(split: Split, seed: int = 0) -> Iterator[TextExample]:
    """The functions that have a docstring, at most one of a file, cut after it, with what stands before them in their file. A
    package is of one split; the seed draws the order."""
    for file in sorted(source_files(split), key=lambda file: hash_order(f"{seed or ''}{file.name}")):
        yield from _first_of(file)


def _first_of(file: SourceFile) -> Iterator[TextExample]:
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError):  # of another version of Python
        return
    lines = file.text.splitlines(keepends=True)
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
            yield TextExample(before[cut:], body, identity=file.package)
            return


TASKS = (Task("installed-functions", "the body of a function of an installed package", installed_functions, raw=True),)

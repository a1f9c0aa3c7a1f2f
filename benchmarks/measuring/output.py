"""Print and write what all benchmarks do: tables for people, JSON on the last line, and a file that a later run can
extend.

Knows options and files. Knows nothing of what is measured.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown

from measuring.hardware import provenance
from measuring.tables import TABLES, origin

SAME_MACHINE = ("cpu", "threads", "gpu", "torch")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="PyTorch's threads (its own choice)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that it runs, measures nothing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there too, indented")
    return parser


def at_least_one(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Refuse numbers, or lists of them, below 1."""
    for name in names:
        value = getattr(options, name)
        for each in value if isinstance(value, list) else [value]:
            if each < 1:
                parser.error(f"--{name.replace('_', '-')} must be at least 1, not {each}")


def begin(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Set the threads; return the first entries of the results: which benchmark, on what, when, by which command."""
    if options.threads:
        torch.set_num_threads(options.threads)
    return {"benchmark": name, "quick": options.quick, **provenance()}


def finish(results: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the table, if the benchmark has one; write the file, if one was asked for; print the line of JSON."""
    found = rounded(results)
    if found["benchmark"] in TABLES:
        show(f"{origin(found)}\n\n{TABLES[found['benchmark']](found)}")
    if options.out:
        write(results, options.out)
    print(json.dumps(found))


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write to another name first, so that a file is never half there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".writing-", delete=False) as file:
        file.write(json.dumps(rounded(results), indent=1) + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def read(path: Path, *, like: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return results that an earlier run left in `path`, or None where there are none.

    Raises:
        SystemExit: they are another benchmark's, or were measured on another machine than `like` says: not to be mixed.
    """
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    for name in ("benchmark", "quick", *SAME_MACHINE):
        if found.get(name) != like[name]:
            raise SystemExit(
                f"{path} holds results with {name} {found.get(name)!r}, this run has {like[name]!r}: give another --out"
            )
    return found


def resumed(results: dict[str, Any], options: argparse.Namespace, *, kept: str) -> dict[str, Any]:
    """Return the entry `kept` of the results, with what an earlier run left of it in the file."""
    found = read(options.out, like=results) if options.out else None
    results[kept] = {} if found is None else found[kept]
    entry: dict[str, Any] = results[kept]
    return entry


def note(text: str) -> None:
    """Say what is being done."""
    print(f"== {text}", flush=True)


def show(text: str) -> None:
    """Print Markdown, as wide as it is where nobody watches."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(Markdown(text))


def rounded(value: Any) -> Any:
    """Return the same with six significant digits: more than any clock here has."""
    if isinstance(value, Mapping):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value

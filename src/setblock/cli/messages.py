"""Terminal output: results, one-line messages and progress bars; other libraries' messages are silenced."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from setblock.errors import SetBlockError
from setblock.files import FULL_DISK
from setblock.json_lines import json_line

_PIPE_WIDTH = 160


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json_line(result), end="", flush=True)


def print_message(text: str) -> None:
    """Print one line on stderr."""
    print(f"setblock: {' '.join(text.split())}", file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: `1 answer`, `2 answers`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@contextmanager
def resumable() -> Iterator[None]:
    """Print that the same command resumes, if Ctrl-C or SIGTERM stops the body of the `with` statement."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as interruption:
        print_message("interrupted; run the same command again to resume")
        raise typer.Exit(128 + (*interruption.args, signal.SIGINT)[0]) from interruption
    finally:
        signal.signal(signal.SIGTERM, before)


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning without its place in the code, as a `warnings.showwarning`."""
    print_message(f"warning: {message}")


def print_figures(text: str) -> None:
    """Print a dim line on stderr."""
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def stdout_console() -> Console:
    """Make the console when it is needed, so that it sees what stdout is then. A pipe has no width that a table must be
    cut to."""
    is_cut = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if is_cut else _PIPE_WIDTH)


def figures_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and their figures, without a head."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, figure in rows:
        table.add_row(name, figure)
    return table


def columns(before: str = "{task.description}", after: str = "") -> tuple[ProgressColumn, ...]:
    """Return the columns of a bar: texts before and after it, how much is done, and the remaining time."""
    return TextColumn(before), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn(after)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar on stderr, if that is a terminal, for each name in turn. Yield a function of the name of what is in progress,
    how much of it is done, and the total (None if unknown)."""
    console = Console(stderr=True, highlight=False)
    with Progress(*columns(), console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=None)

        def report(name: str, done: int, total: int | None) -> None:
            if name != bars.tasks[bar].description:
                bars.reset(bar)
            bars.update(bar, description=name, completed=done, total=total)

        yield report


_PATIENCE = 5.0
"""Seconds before a step is named; a shorter step gets no line."""


@contextmanager
def slow_steps_named() -> Iterator[None]:
    """While active, print a line for each step that the library logs, if the step takes longer than `_PATIENCE`."""
    logger, timer = logging.getLogger("setblock.steps"), threading.Timer(0, print)  # of no step yet: never started

    def wait_for_the_next(record: logging.LogRecord) -> bool:
        nonlocal timer
        timer.cancel()
        timer = threading.Timer(_PATIENCE, print_message, [f"{record.getMessage()} ..."])
        timer.daemon = True
        timer.start()
        return True  # the record goes on to whoever else handles it

    logger.setLevel(logging.INFO)
    logger.addFilter(wait_for_the_next)
    try:
        yield
    finally:
        logger.removeFilter(wait_for_the_next)
        timer.cancel()


def silence_early() -> None:
    """Silence libraries' warnings, which a user can't fix, and tqdm's bars if stderr is no terminal. Call this before anything
    heavy is imported."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when it is imported
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def silence_libraries() -> None:
    """Silence Transformers while it loads: what matters to the user is raised as a `SetBlockError`."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    set_verbosity_error()
    disable_progress_bar()


@contextmanager
def writable_stdout() -> Iterator[None]:
    """Flush stdout at the end. Raise `SetBlockError` if stdout is closed or its disk is full."""
    if sys.stdout is None:
        raise SetBlockError("stdout is closed, so that nothing could be written to it")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in FULL_DISK or error.filename is not None:
            raise
        # What is left in Python's buffer would fail again as the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SetBlockError(f"can't write to stdout: {error.strerror}") from error

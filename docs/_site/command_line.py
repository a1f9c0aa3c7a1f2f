"""Write the reference of the command line, from what `--help` says of each command."""

from collections.abc import Iterator
from html import escape
from typing import Any

import typer

from setblock.cli.options.groups import show_all


def page() -> str:
    """Return the page of all commands, each with its arguments and options."""
    from setblock.cli.app import app

    root: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        f"{root.help}",
        "Each command prints what most people need with `--help`, and all of it with `--help-all`.",
    ]
    for words, command in commands(root, ("setblock",)):
        context = typer.Context(command, info_name=" ".join(words))
        usage = command.collect_usage_pieces(context)
        parts += [f"## {' '.join(words)}", paragraphs(command.help), f"```text\n{' '.join([*words, *usage])}\n```"]
        parts += tables(command, context)
    return "\n\n".join(parts) + "\n"


def commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        here = (*words, name)
        if hasattr(command, "commands"):
            yield from commands(command, here)
        elif not command.hidden:
            yield here, command


def tables(command: Any, context: Any) -> list[str]:
    """Return a table for each group of options, as `--help` groups them."""
    groups: dict[str, list[str]] = {}
    show_all(command)
    for parameter in command.params:
        if not parameter.hidden and parameter.name not in ("help", "help_all"):
            panel = parameter.rich_help_panel or "Arguments and options"
            groups.setdefault(panel, []).append(row(*parameter.get_help_record(context)))
    return ["\n".join([f"| {panel} | |", "|---|---|", *rows]) for panel, rows in groups.items()]


def row(names: str, text: str) -> str:
    """Return a row of a Markdown table."""
    return f"| <code>{escaped(names)}</code> | {escaped(text)} |"


def escaped(text: str) -> str:
    """Return text that can be in a table."""
    return escape(" ".join(text.split()), quote=False).replace("|", "&#124;")


def paragraphs(text: str | None) -> str:
    """Return a help text in Markdown: its paragraphs, without the marks of the terminal."""
    return (text or "").replace("\b", "").strip()

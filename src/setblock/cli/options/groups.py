"""Define the options of commands: each once, in groups that commands share, shown in the panels of `--help`.

Knows typer. Knows nothing of what an option does.
"""

import inspect
import re
from collections.abc import Callable, Container
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin

import typer
from typer.models import OptionInfo

DECODING, SAMPLING, TASK, OUTPUT = "Decoding", "Sampling", "Task", "Output"  # panels of several groups or commands

_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
_METAVARS |= {kind | None: name for kind, name in _METAVARS.items()}

Group = TypeVar("Group")


def option(default: Any, told: str, *names: str, panel: str | None = None, is_rare: bool = False, **more: Any) -> Any:
    """Return an option, in place of the default of a command's parameter or of a field of an `option_group`.

    Args:
        default: `...` if the option must be given, and inside `Annotated`.
        told: its help.
        names: what is typed; by default the parameter's name, also of a flag.
        is_rare: show it in `--help-all` only.
        more: typer's own arguments, such as `metavar`.
    """
    return typer.Option(default, *names, help=told, rich_help_panel=panel, hidden=is_rare, **more)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_group(panel: str | None = None) -> Callable[[type[Group]], type[Group]]:
    """Return a frozen dataclass of options, for a parameter of a command. Its options are in `panel`, unless they name
    another."""

    def made(group: type[Group]) -> type[Group]:
        annotations = dict(group.__annotations__)
        for name, kind in annotations.items():
            info = vars(group).get(name)
            if isinstance(info, OptionInfo):
                info.rich_help_panel = info.rich_help_panel or panel
                annotations[name] = Annotated[kind, info]
                setattr(group, name, info.default)
        group.__annotations__ = annotations
        return dataclass(frozen=True, kw_only=True)(group)

    return made


def offering(*kinds: type[Any], but_not: Container[str]) -> Callable[[type[Group]], type[Group]]:
    """Give an `option_group` an option for each field of some dataclasses. Its help is what their docstrings say of it."""

    def filled(group: type[Group]) -> type[Group]:
        annotations = dict(group.__annotations__)
        for kind in kinds:
            listed = inspect.getdoc(kind) or ""
            for each in fields(kind):
                if each.name in but_not:
                    continue
                found = re.search(rf"^    {each.name}: (.+(?:\n {{8}}.+)*)", listed, re.MULTILINE)
                told = " ".join(found[1].split()) if found else ""  # none under `python -OO`
                setattr(group, each.name, option(each.default, told))
                annotations[each.name] = each.type
        group.__annotations__ = annotations
        return group

    return filled


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that typer understands: its parameters that are option groups are replaced by their fields.

    The command itself gets each group, filled in.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += map(_completed, inspect.signature(groups[parameter.name]).parameters.values())
        else:
            parameters.append(_completed(parameter))
    if any(getattr(info, "hidden", False) for each in parameters for info in get_args(each.annotation)[1:]):
        parameters.append(_HELP_ALL)

    @wraps(command)
    def expanded(**values: Any) -> None:
        values.pop(_HELP_ALL.name, None)
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def show_all(command: Any) -> None:
    """Let the help of a command show all that it takes, rare options, too."""
    for parameter in command.params:
        parameter.hidden = False


def _help_all(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        show_all(context.command)
        typer.echo(context.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    annotation=Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_help_all, help="Show all options and exit.")
    ],
    default=False,
)


def _completed(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as typer takes it: the option in the annotation, with its names, and the default apart."""
    kind, default, infos = parameter.annotation, parameter.default, []
    if get_origin(kind) is Annotated:
        kind, *infos = get_args(kind)
    if isinstance(default, OptionInfo):
        default, infos = default.default, [default]
    for place, info in enumerate(infos):
        if isinstance(info, OptionInfo):
            info = infos[place] = copy(info)
            info.default = ...
            info.param_decls = info.param_decls or (f"--{parameter.name.replace('_', '-')}",)
            info.metavar = info.metavar or _METAVARS.get(kind)
    return parameter.replace(
        kind=inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, *infos] if infos else kind,
        default=inspect.Parameter.empty if default is ... else default,
    )


JsonOption = Annotated[bool, option(..., "Print one JSON object on stdout, and nothing else.", "--json", panel=OUTPUT)]

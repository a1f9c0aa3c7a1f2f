"""Options of commands for typer: each is defined once, in groups that commands share, shown in the panels of `--help`."""

import inspect
import re
from collections.abc import Callable, Container
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import typer
from typer.models import OptionInfo

DECODING, SAMPLING, TASK, OUTPUT = "Decoding", "Sampling", "Task", "Output"  # panels of several groups or commands

_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE"}
_METAVARS |= {kind | None: name for kind, name in _METAVARS.items()}

Group = TypeVar("Group")
AvailableOptions = dict[str, tuple[Any, Any]]
"""Options by name, each with its type: the further options of an `option_group`, besides its own fields."""


def option(default: Any, help: str, *names: str, panel: str | None = None, is_rare: bool = False, **more: Any) -> Any:
    """Return an option, in place of the default of a command's parameter or of a field of an `option_group`.

    Args:
        default: `...` if the option must be given.
        help: its help.
        names: what is typed; by default the parameter's name, also of a flag.
        is_rare: show it in `--help-all` only.
        more: typer's own arguments, such as `metavar`.
    """
    return _typed(default, typer.Option(..., *names, help=help, rich_help_panel=panel, hidden=is_rare, **more))


optional, rare = partial(option, None), partial(option, None, is_rare=True)
"""Options that are None where nothing is typed. Only `--help-all` shows a `rare` one."""


def argument(default: Any, help: str, metavar: str, **more: Any) -> Any:
    """Return an argument, which is typed without a name. It has the place and the parameters of an `option`."""
    return _typed(default, typer.Argument(metavar=metavar, help=help, **more))


def _typed(default: Any, info: Any) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"typed": info})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_group(
    panel: str | None = None, *, available: AvailableOptions | None = None
) -> Callable[[type[Group]], type[Group]]:
    """Return a frozen dataclass of options, for a parameter of a command: its own fields, then those of `available`. They are
    in `panel`, unless they name another."""

    def made(group: type[Group]) -> type[Group]:
        for name, (kind, each) in (available or {}).items():
            group.__annotations__[name] = kind
            setattr(group, name, each)
        filled = dataclass(frozen=True, kw_only=True)(group)
        for each in fields(filled):  # type: ignore[arg-type]
            if (info := each.metadata.get("typed")) is not None:
                info.rich_help_panel = info.rich_help_panel or panel
        return filled

    return made


def options_of(*kinds: type[Any], but_not: Container[str]) -> AvailableOptions:
    """Return an option for each field of some dataclasses. Its help is the field's text in the dataclass's docstring."""
    available = {}
    for kind in kinds:
        listed = inspect.getdoc(kind) or ""
        for each in fields(kind):
            if each.name not in but_not:
                found = re.search(rf"^    {each.name}: (.+(?:\n {{8}}.+)*)", listed, re.MULTILINE)
                help_text = " ".join(found[1].split()) if found else ""  # none under `python -OO`
                available[each.name] = (each.type, option(each.default, help_text))
    return available


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that typer understands: its parameters that are option groups are replaced by their fields.

    The command itself gets each group, filled in.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        if is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            parameters += [_parameter(one.name, one.type, one) for one in fields(each.annotation)]
        else:
            parameters.append(_parameter(each.name, each.annotation, each.default))
    if any(getattr(each.annotation.__metadata__[0], "hidden", False) for each in parameters):
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


def _parameter(name: str, kind: Any, typed: "Field[Any]") -> inspect.Parameter:
    """Return an option or an argument in typer's form: names and help in the annotation, the default separate."""
    info = typed.metadata["typed"]
    if isinstance(info, OptionInfo):
        info.param_decls = info.param_decls or (f"--{name.replace('_', '-')}",)
        info.metavar = info.metavar or _METAVARS.get(kind)
    default = inspect.Parameter.empty if typed.default is MISSING else typed.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default)


def show_all(command: Any) -> None:
    """Make the help of a command show all of its options, rare ones too."""
    for parameter in command.params:
        parameter.hidden = False


def _help_all(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        show_all(context.command)
        typer.echo(context.get_help())
        raise typer.Exit


_HELP_ALL = _parameter("help_all", bool, option(False, "Show all options and exit.", is_eager=True, callback=_help_all))

JSON = option(False, "Print one JSON object on stdout, and nothing else.", "--json", panel=OUTPUT)

"""Options that several commands share are the fields of a dataclass: declared once, and one parameter of each command."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses of options are replaced by their fields, which typer understands.

    The fields are annotated as any parameter of a command is. The command itself gets the dataclass, filled in.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += inspect.signature(groups[parameter.name]).parameters.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded

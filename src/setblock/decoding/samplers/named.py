"""Samplers by name: those of `samplers/` and of plug-ins, and samplers from and to a name with hyperparameters.

A sampler's module is imported on first use.
"""

from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, get_type_hints

from setblock.errors import ParameterError, converted, did_you_mean

if TYPE_CHECKING:
    from setblock.decoding.samplers.base import BlockView, Sampler, Selection

PLUG_INS = "setblock.samplers"
"""The group of entry points under which other packages name their samplers."""


class Samplers(UserDict[str, type[Any]]):
    """A mapping of names to sampler classes: those of `samplers/`, of plug-ins, and those added by hand.

    A file has its rule's name, with underscores for dashes. A sampler added by hand takes precedence over a file, and a
    file over a plug-in. `SAMPLERS["mine"] = Mine` adds one to this process; `data` contains these.
    """

    def __missing__(self, name: str) -> type[Any]:
        kind: type[Any] = (own_rules().get(name) or _plug_ins()[name]).load()
        return kind

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in own_rules() or name in _plug_ins()

    def __iter__(self) -> Iterator[str]:
        return iter({**own_rules(), **_plug_ins(), **self.data})

    def __len__(self) -> int:
        return len(list(iter(self)))


SAMPLERS = Samplers()


@cache
def own_rules() -> dict[str, EntryPoint]:
    """Return an entry point for each rule of `samplers/`, by name: `EntropyPrefix` is in the file `entropy_prefix.py`."""
    files = {module.name for module in iter_modules([str(Path(__file__).parent)])} - {"base", "named"}
    homes = {file: f"setblock.decoding.samplers.{file}:{file.title().replace('_', '')}" for file in sorted(files)}
    points = [EntryPoint(file.replace("_", "-"), home, PLUG_INS) for file, home in homes.items()]
    return {each.name: each for each in points}


@cache
def _plug_ins() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=PLUG_INS)}


@dataclass(frozen=True)
class RecordedSampler:
    """A sampler that a file of results names but this process doesn't have, such as a class in a user's file. It can be
    shown and compared, but not run: reading results runs no code that they name."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def select(self, block: "BlockView") -> "Selection":
        """Raise `ParameterError`."""
        raise ParameterError(f"sampler {self.name} is not known here: name it with --sampler")


def name_of(sampler: "Sampler") -> str:
    """Return the name of a sampler's class, or raise `ParameterError` if it has none."""
    if isinstance(sampler, RecordedSampler):
        return sampler.name
    own = getattr(type(sampler), "name", None)
    for name in [own] if isinstance(own, str) and own in SAMPLERS else SAMPLERS.data:
        if SAMPLERS[name] is type(sampler):
            return name
    raise ParameterError(f"sampler {sampler} has no name: put its class into setblock.decoding.samplers.SAMPLERS")


def options_of(sampler: "Sampler") -> dict[str, Any]:
    """Return a sampler's hyperparameters."""
    if isinstance(sampler, RecordedSampler):
        return dict(sampler.options)
    return {field.name: getattr(sampler, field.name) for field in fields(sampler)}  # type: ignore[arg-type]


def parameters_of(name: Any) -> dict[str, Any]:
    """Return the hyperparameters of a named sampler with their defaults, None if there is no default. Raise
    `ParameterError` if there is no such sampler."""
    if not isinstance(name, str) or name not in SAMPLERS:
        near = did_you_mean(name, SAMPLERS) if isinstance(name, str) else ""
        raise ParameterError(f"sampler must be one of {', '.join(SAMPLERS)}, not {name!r}{near}")
    return {each.name: None if each.default is MISSING else each.default for each in fields(SAMPLERS[name])}


def sampler_named(name: Any, options: Mapping[str, Any]) -> "Sampler":
    """Return a named sampler with these hyperparameters, others at their defaults. A number may be text, such as `inf`.
    Raise `ParameterError` if there is no such sampler or hyperparameter, or a value is not valid."""
    known = parameters_of(name)
    kinds, values = get_type_hints(SAMPLERS[name]), {}
    for key, value in options.items():
        if key not in known:
            summary = f"it has {', '.join(known) or 'no parameters'}"
            raise ParameterError(f"sampler {name} has no {key!r}{did_you_mean(key, known)}; {summary}")
        values[key] = converted(f"{key} of sampler {name}", value, kinds[key])
    for each in fields(SAMPLERS[name]):
        if each.default is MISSING and each.name not in values:
            raise ParameterError(f"sampler {name} needs {each.name} among its options")
    sampler: Sampler = SAMPLERS[name](**values)
    return sampler

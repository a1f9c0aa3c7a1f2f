"""Grids of values, and the operating points of a sweep that they give. A point may leave its block size to the model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from setblock.decoding.samplers.named import SAMPLERS, name_of, parameters_of
from setblock.decoding.settings.resolve import requested_settings, sampler_for
from setblock.decoding.settings.table import POINT, SETTINGS, DecodingSettings, Method, with_current_names
from setblock.errors import ParameterError, SetBlockError, converted
from setblock.evaluation.operating_point import point_of
from setblock.model.sbd_model import SBDModel
from setblock.yaml_loader import read_yaml

Grid = Mapping[str, Sequence[Any]]
"""The values of each key; the grid is their product."""

DEFAULT_SAMPLER = name_of(sampler_for(DecodingSettings(method="sbd")))
"""The sampler that hyperparameters belong to if no sampler is named."""

METHODS: tuple[Method, ...] = ("sbd", "exact")
_KINDS: dict[str, Any] = {name: SETTINGS[name].type for name in POINT if name != "sampler"}


def grids_of(methods: Sequence[str], samplers: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[Grid]:
    """Return the grids that the command line asks for: one for each of the `samplers` in method `sbd`, one for method `exact`.
    The `values` of a setting such as `block_size` apply to every grid that has it; those of a hyperparameter, to every sampler
    that has it. A sampler whose hyperparameters get no values is swept along its dial. Raise `ParameterError` if a name is
    unknown, or a key fits no grid."""
    values = with_current_names(values)
    for method in methods:
        _check_method(method)
    parameters = {name: parameters_of(name) for name in samplers if "sbd" in methods}
    grids: list[Grid] = []
    for name, known in parameters.items():
        own = {key: each for key, each in values.items() if key in known}
        if not own and (dial := getattr(SAMPLERS[name], "dial", None)) is not None:
            own = {dial.name: dial.values}
        blocks = {key: values[key] for key in _KINDS if key in values and SETTINGS[key].acts_in("sbd")}
        grids.append({"method": ["sbd"], "sampler": [name], **own, **blocks})
    if "exact" in methods:
        grids.append({"method": ["exact"], **{key: values[key] for key in _KINDS if key in values}})
    fitting = {key for grid in grids for key in grid} - {"method", "sampler"}
    for key in values.keys() - fitting:
        listed = [f"{name} has {', '.join(known) or 'nothing'}; " for name, known in parameters.items()]
        raise ParameterError(
            f"grid key {key!r} fits nothing that is swept: {''.join(listed)}all have {', '.join(_KINDS)}"
        )
    return grids


def read_grids(path: Path) -> list[Grid]:
    """Return the grids of a YAML file: a list of mappings from keys to a value or a list of values. Raise `SetBlockError`
    if there is no such file, or it has another form."""
    content = read_yaml(path)
    if not isinstance(content, list) or not all(isinstance(each, dict) and each for each in content):
        raise SetBlockError(f"{path} must be a list of mappings, such as `- {{sampler: factor, factor: [0.5, 1]}}`")
    return [
        with_current_names({str(key): value if isinstance(value, list) else [value] for key, value in grid.items()})
        for grid in content
    ]


def points_of(model: SBDModel, grids: Iterable[Grid]) -> list[DecodingSettings]:
    """Return the points of grids for a model, in the order of the grids, each once. Raise `SetBlockError` if a key is unknown,
    a value is not valid, or the model does not support a point."""
    settings = (each for grid in grids for each in _settings(grid))
    return list(dict.fromkeys(point_of(model, each) for each in settings))


def _settings(grid: Grid) -> Iterator[DecodingSettings]:
    for key, given in grid.items():
        if not given:
            raise ParameterError(f"grid key {key!r} must have at least one value")
    for chosen in product(*grid.values()):
        values = {"method": "sbd", **dict(zip(grid, chosen, strict=True))}
        _check_method(values["method"])
        values |= {key: converted(f"grid key {key}", values[key], _KINDS[key]) for key in values.keys() & _KINDS.keys()}
        yield requested_settings(values, available=("method", *POINT), noun="grid key")


def _check_method(method: Any) -> None:
    if method not in METHODS:
        raise ParameterError(f"method must be one of {', '.join(METHODS)}, not {method!r} (ntp is always decoded)")

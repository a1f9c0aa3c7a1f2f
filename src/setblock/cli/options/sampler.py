"""Describe the sampler in reports."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.table import HYPERPARAMETERS, DecodingSettings
from setblock.errors import ParameterError
from setblock.files import module_of


def with_own_sampler(name: str | None) -> str | None:
    """Return the name of a sampler; one such as `my_file.py:Clear` puts that class among the samplers of this process.

    Only the command line reads such names: a client of a server must not choose which code runs.

    Raises:
        ParameterError: there is no such file or class, its code fails, or the class is no sampler.
    """
    if name is None or ".py:" not in name:
        return name
    path, _, kind = name.rpartition(":")
    found = getattr(module_of(Path(path).expanduser()), kind, None)
    if not (isinstance(found, type) and is_dataclass(found) and callable(getattr(found, "select", None))):
        raise ParameterError(f"sampler {name}: {path} must define {kind} as a dataclass with the method select")
    SAMPLERS[name] = found
    return name


def sampler_json(settings: DecodingSettings) -> dict[str, Any]:
    """Return what a report's JSON says of the sampler: all None in method `ntp`, which has none."""
    from setblock.decoding.settings.asked import sampler_told

    told = sampler_told(settings)
    return {**told, **{name: (told["sampler_options"] or {}).get(name) for name in HYPERPARAMETERS}}


def sampler_text(settings: DecodingSettings) -> str:
    """Return the sampler and its parameters in a few words."""
    from setblock.decoding.settings.asked import sampler_told

    told = sampler_told(settings)
    values = ", ".join(f"{key} {_shown(value)}" for key, value in told["sampler_options"].items())
    return f"{told['sampler']} ({values})" if values else str(told["sampler"])


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Turn names and values into settings, for every caller.

Knows the table of settings, and samplers by name. Knows nothing of command lines, HTTP or other libraries.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from setblock.decoding.samplers.named import name_of, options_of, parameters_of, sampler_asked
from setblock.decoding.settings.defaults import sampler_for
from setblock.decoding.settings.table import HYPERPARAMETERS, SETTINGS, DecodingSettings
from setblock.errors import ParameterError, did_you_mean


def settings_asked(
    asked: Mapping[str, Any],
    *,
    base: DecodingSettings | None = None,
    offered: Collection[str] = tuple(SETTINGS),
    told: str = "parameter",
) -> DecodingSettings:
    """Return the settings of `base`, with the values that are asked for in place of `base`'s.

    Args:
        asked: settings by their names in the table; `sampler` may be a name. Hyperparameters of the sampler are a mapping under
            `sampler_options`, or are next to it. Without a sampler they replace those of the one in `base`,
            or of the method's own. What is None is as if it were not there.
        base: by default the settings of a request that says nothing.
        offered: the settings that may be asked for.
        told: what an error calls a name that is not known.

    Raises:
        ParameterError: a name is not known, or a value not valid.
    """
    if base is not None and not isinstance(base, DecodingSettings):
        raise ParameterError(f"settings must be DecodingSettings, not {base!r}")
    given = {name: value for name, value in asked.items() if value is not None}
    chosen, options = given.pop("sampler", None), dict(given.pop("sampler_options", {}))
    values = {name: given.pop(name) for name in offered if name in given and name in SETTINGS}
    settings = replace(base or DecodingSettings(), **values)
    if chosen is None and not options and not given:
        return settings
    default = sampler_for(settings)
    for name, value in given.items():
        if name in options:
            raise ParameterError(f"{name} is given more than once")
        if name not in HYPERPARAMETERS and not hasattr(chosen, "select"):  # `sampler_asked` reports these
            _check_known(name, chosen or name_of(default), offered=offered, told=told)
        options[name] = value
    return replace(settings, sampler=sampler_asked(chosen, options, default=default))


def sampler_told(settings: DecodingSettings) -> dict[str, Any]:
    """Return a sampler as the words that ask for it, `sampler` and `sampler_options`; both are None in method `ntp`."""
    if settings.method == "ntp":
        return {"sampler": None, "sampler_options": None}
    sampler = sampler_for(settings)
    return {"sampler": name_of(sampler), "sampler_options": options_of(sampler)}


def _check_known(name: str, sampler: Any, *, offered: Collection[str], told: str) -> None:
    own = parameters_of(sampler)
    if name not in own:
        known = [*offered, "sampler"] if "sampler" not in offered else list(offered)
        raise ParameterError(
            f"{told} {name!r} is not known{did_you_mean(name, [*known, *own])}; there are {', '.join(known)}, and of sampler "
            f"{sampler} {', '.join(own) or 'none'}"
        )

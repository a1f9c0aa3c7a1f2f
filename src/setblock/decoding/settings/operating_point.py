"""Define operating points: a method and the settings of the group `point`, all decided, which trade accuracy for passes.

A point is the `DecodingSettings` that say this and nothing else. Knows them as plain data that files can hold, and as words.
Knows nothing of files, tasks, or of how well a point does.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from setblock.decoding.samplers.named import defaults_of, name_of, options_of, sampler_named
from setblock.decoding.settings.defaults import decided
from setblock.decoding.settings.table import POINT, SETTINGS, DecodingSettings
from setblock.errors import ParameterError

if TYPE_CHECKING:
    from setblock.model.protocol.language_model import LanguageModel

NTP = DecodingSettings(method="ntp", block_size=1)
_WITHOUT_EFFECT = (("adaptive_blocks", False), ("draft_passes", None), ("draft_passes", 1))
_KEYS = ("method", "sampler", "sampler_options", *(name for name in POINT if name != "sampler"))


def point_of(model: "LanguageModel", settings: DecodingSettings) -> DecodingSettings:
    """Return the operating point of a request's settings, with open settings filled in.

    Raises:
        SetBlockError: the model can't be decoded so, or the sampler has no name.
    """
    point = at_point(decided(settings, model.facts, has_draft_text=model.draft_text is not None))
    if point.sampler is not None:
        name_of(point.sampler)
    return point


def at_point(point: DecodingSettings, shared: DecodingSettings | None = None) -> DecodingSettings:
    """Return the settings of a request: of an operating point, and for everything else those of `shared`."""
    return replace(shared or DecodingSettings(), **{name: getattr(point, name) for name in ("method", *POINT)})


def label_of(point: DecodingSettings) -> str:
    """Return a few words for tables: `entropy-bounded 0.1, k 16`. Settings and hyperparameters at their defaults are given by
    name if at all."""
    if point.sampler is None:
        return point.method
    defaults = defaults_of(name_of(point.sampler))
    told = [
        _number(value) if place == 0 else f"{name} {_number(value)}"
        for place, (name, value) in enumerate(options_of(point.sampler).items())
        if place == 0 or value != defaults.get(name)
    ]
    words: list[str] = [] if point.method == "sbd" else [point.method]
    words.append(" ".join([name_of(point.sampler), *told]))
    for name in POINT[1:]:
        row, value = SETTINGS[name], getattr(point, name)
        if value != row.default and (value or row.default is not None):
            words.append(f"{row.short or name} {_number(value)}")
    return ", ".join(words)


def point_to_json(point: DecodingSettings) -> dict[str, Any]:
    """Return the point as JSON, with the sampler's name in `SAMPLERS` and all of its hyperparameters. JSON has no infinity, so
    it becomes the text `inf`."""
    sampler = point.sampler
    options = {} if sampler is None else options_of(sampler)
    told = {
        "sampler": None if sampler is None else name_of(sampler),
        "sampler_options": {
            name: "inf" if isinstance(value, float) and math.isinf(value) else value for name, value in options.items()
        },
    }
    return {key: told[key] if key in told else getattr(point, key) for key in _KEYS}


def point_from_json(recorded: Any) -> DecodingSettings:
    """Return the point that `point_to_json` wrote. What an earlier release did not know stays open.

    Raises:
        ParameterError: it is none, or none that this release knows.
    """
    if isinstance(recorded, Mapping):  # of an earlier release, which had more
        recorded = {name: value for name, value in recorded.items() if (name, value) not in _WITHOUT_EFFECT}
    if not isinstance(recorded, Mapping) or not {"method"} <= recorded.keys() <= {*_KEYS}:
        raise ParameterError(f"an operating point must have the keys {', '.join(sorted(_KEYS))}, not be {recorded!r}")
    values = dict(recorded)
    sampler, options = values.pop("sampler", None), values.pop("sampler_options", {})
    point = DecodingSettings(**values)
    if point.method == "ntp":
        return NTP
    if not isinstance(sampler, str) or not isinstance(options, Mapping):
        raise ParameterError(f"an operating point of method {point.method} must name a sampler")
    return replace(point, sampler=sampler_named(sampler, options))


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Operating points: a method and the settings of the group `point`, all resolved, which trade accuracy for passes.

A point is a `DecodingSettings` with only these set. This module takes points from requests, and writes them as JSON and as
labels; `point_from_json` of `setblock.decoding.settings.resolve` reads them.
"""

import math
from typing import TYPE_CHECKING, Any

from setblock.decoding.samplers.named import RecordedSampler, name_of, options_of, parameters_of
from setblock.decoding.settings.resolve import POINT_KEYS, at_point, resolved, sampler_to_dict
from setblock.decoding.settings.table import POINT, SETTINGS, DecodingSettings

if TYPE_CHECKING:
    from setblock.model.protocol.runtime import LanguageModel


def point_of(model: "LanguageModel", settings: DecodingSettings) -> DecodingSettings:
    """Return the operating point of a request. Raise `SetBlockError` as `resolved` does, or if the sampler has no name."""
    point = at_point(resolved(settings, model.sbd_config, has_draft_text=model.draft_text is not None))
    if point.sampler is not None:
        name_of(point.sampler)
    return point


def label_of(point: DecodingSettings) -> str:
    """Return a label for tables: `entropy-bounded 0.1, k 16`. Defaults are left out, except the first parameter."""
    if point.sampler is None:
        return point.method
    defaults = {} if isinstance(point.sampler, RecordedSampler) else parameters_of(name_of(point.sampler))
    parameters = [
        _number(value) if place == 0 else f"{name} {_number(value)}"
        for place, (name, value) in enumerate(options_of(point.sampler).items())
        if place == 0 or name not in defaults or value != defaults[name]
    ]
    words = [*([] if point.method == "sbd" else [point.method]), " ".join([name_of(point.sampler), *parameters])]
    for name in POINT[1:]:
        row, value = SETTINGS[name], getattr(point, name)
        if value != row.default and (value or row.default is not None):
            words.append(f"{row.short or name} {_number(value)}")
    return ", ".join(words)


def point_to_json(point: DecodingSettings) -> dict[str, Any]:
    """Return the point as JSON, with the sampler's name and all of its hyperparameters. Infinity becomes the text `inf`."""
    of_sampler = sampler_to_dict(point)
    options = (of_sampler["sampler_options"] or {}).items()
    of_sampler["sampler_options"] = {name: "inf" if value == math.inf else value for name, value in options}
    return {key: of_sampler[key] if key in of_sampler else getattr(point, key) for key in POINT_KEYS}


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

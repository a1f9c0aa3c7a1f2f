"""Operating points: a method and the settings of the group `point`, all resolved, which trade accuracy for passes.

A point is a `DecodingSettings` with only these set. This module writes points as JSON and as labels, and finds the
calibrated point of a request. A calibrated setting was tested as a whole: a request that sets any part of its operating
point gets none of it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from setblock.decoding.samplers.named import (
    SAMPLERS,
    RecordedSampler,
    name_of,
    options_of,
    parameters_of,
    sampler_named,
)
from setblock.decoding.settings.resolve import resolved, sampler_to_dict
from setblock.decoding.settings.table import POINT, RENAMED, SETTINGS, DecodingSettings, Method
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    from setblock.model.protocol.runtime import LanguageModel
    from setblock.model.protocol.sbd_config import CalibratedSetting, SBDModelConfig

NTP = DecodingSettings(method="ntp", block_size=1)
_KEYS = ("method", "sampler", "sampler_options", *(name for name in POINT if name != "sampler"))


def point_of(model: "LanguageModel", settings: DecodingSettings) -> DecodingSettings:
    """Return the operating point of a request. Raise `SetBlockError` as `resolved` does, or if the sampler has no name."""
    point = at_point(resolved(settings, model.sbd_config, has_draft_text=model.draft_text is not None))
    if point.sampler is not None:
        name_of(point.sampler)
    return point


def at_point(point: DecodingSettings, base: DecodingSettings | None = None) -> DecodingSettings:
    """Return settings at an operating point, with everything else from `base`."""
    return replace(base or DecodingSettings(), **{name: getattr(point, name) for name in ("method", *POINT)})


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
    return {key: of_sampler[key] if key in of_sampler else getattr(point, key) for key in _KEYS}


def point_from_json(recorded: Any, *, to_decode: bool = True) -> DecodingSettings:
    """Return the point that `point_to_json` wrote. Settings that an earlier release didn't have stay open. Raise
    `ParameterError` if it is not a point, or not one that this release knows. `to_decode`: whether it will be decoded
    with; if not, an unknown sampler becomes a `RecordedSampler`."""
    if isinstance(recorded, Mapping):  # names of an earlier release
        recorded = {RENAMED.get(key, key): value for key, value in recorded.items()}
    if not isinstance(recorded, Mapping) or not {"method"} <= recorded.keys() <= {*_KEYS}:
        raise ParameterError(f"an operating point must have the keys {', '.join(sorted(_KEYS))}, not be {recorded!r}")
    values = dict(recorded)
    sampler, options = values.pop("sampler", None), values.pop("sampler_options", {})
    point = DecodingSettings(**values)
    if point.method == "ntp":
        return NTP
    if not isinstance(sampler, str) or not isinstance(options, Mapping):
        raise ParameterError(f"an operating point of method {point.method} must name a sampler")
    if sampler not in SAMPLERS and not to_decode:
        return replace(point, sampler=RecordedSampler(sampler, tuple(options.items())))
    return replace(point, sampler=sampler_named(sampler, options))


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class Trained(Protocol):
    """A model with an SBD config, such as an `SBDModel`."""

    @property
    def sbd_config(self) -> "SBDModelConfig | None":
        """The SBD config; None if the model was not trained for blocks."""


def with_calibration(
    model: Trained, settings: DecodingSettings | None = None, *, domain: str | None = None
) -> DecodingSettings:
    """Return the settings at the calibrated point of their method, if there is one and they leave the point open;
    otherwise unchanged. `settings`: by default those of a request without settings. `domain`: as in
    `calibration_for`."""
    settings = settings or DecodingSettings()
    if not leaves_point_open(settings):
        return settings
    found = calibration_for(model, method=settings.method, domain=domain)
    return settings if found is None else at_calibration(found, settings)


def leaves_point_open(settings: DecodingSettings) -> bool:
    """Return whether settings set no part of their operating point, except perhaps the method."""
    return all(getattr(settings, name) == SETTINGS[name].default for name in POINT)


def calibration_for(model: Trained, *, method: Method, domain: str | None = None) -> "CalibratedSetting | None":
    """Return the calibrated setting of a method that a request gets, or None. Without a `domain` it is the most careful
    one, the slowest of all domains. Raise `ParameterError` if the model was not calibrated for the domain."""
    known = () if model.sbd_config is None else model.sbd_config.calibrations
    domains = list(dict.fromkeys(each.domain for each in known))
    if domain is not None and domain not in domains:
        summary = f"was calibrated for {', '.join(domains)}" if domains else "was calibrated for none"
        raise ParameterError(f"domain {domain!r} is not known: this model {summary}")
    of_method = [each for each in known if each.method == method and domain in (None, each.domain)]
    fastest = {each.domain: each for each in sorted(of_method, key=lambda each: each.nfe_speedup)}  # the last one stays
    return min(fastest.values(), key=lambda each: each.nfe_speedup, default=None)


def at_calibration(found: "CalibratedSetting", settings: DecodingSettings) -> DecodingSettings:
    """Return the settings at a calibrated operating point, or raise `SetBlockError` if this release does not know it."""
    try:
        point = point_from_json(found.point)
    except ParameterError as error:
        raise SetBlockError(
            f"the model's calibrated setting for {found.domain} can't be used: {error}; run `setblock calibrate` again"
        ) from error
    return at_point(point, settings)

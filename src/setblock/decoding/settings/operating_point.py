"""Define operating points: a method and the settings of the group `point`, all decided, which trade accuracy for passes.

A point is the `DecodingSettings` that say this and nothing else. Knows them as plain data of files, and as words, and which
calibrated point a request gets. Knows nothing of files, tasks, or of how well a point does.

A calibrated setting was tested as a whole: a request that says anything of its operating point itself gets none of it.
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
from setblock.decoding.settings.resolve import resolved, sampler_told
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
    """Return the settings of a request: of an operating point, and for everything else those of `base`."""
    return replace(base or DecodingSettings(), **{name: getattr(point, name) for name in ("method", *POINT)})


def label_of(point: DecodingSettings) -> str:
    """Return a few words for tables: `entropy-bounded 0.1, k 16`. What is at its default is left out, but for the first."""
    if point.sampler is None:
        return point.method
    defaults = {} if isinstance(point.sampler, RecordedSampler) else parameters_of(name_of(point.sampler))
    told = [
        _number(value) if place == 0 else f"{name} {_number(value)}"
        for place, (name, value) in enumerate(options_of(point.sampler).items())
        if place == 0 or name not in defaults or value != defaults[name]
    ]
    words = [*([] if point.method == "sbd" else [point.method]), " ".join([name_of(point.sampler), *told])]
    for name in POINT[1:]:
        row, value = SETTINGS[name], getattr(point, name)
        if value != row.default and (value or row.default is not None):
            words.append(f"{row.short or name} {_number(value)}")
    return ", ".join(words)


def point_to_json(point: DecodingSettings) -> dict[str, Any]:
    """Return the point as JSON, with the sampler's name and all of its hyperparameters. Infinity becomes the text `inf`."""
    told = sampler_told(point)
    options = (told["sampler_options"] or {}).items()
    told["sampler_options"] = {name: "inf" if value == math.inf else value for name, value in options}
    return {key: told[key] if key in told else getattr(point, key) for key in _KEYS}


def point_from_json(recorded: Any, *, to_decode: bool = True) -> DecodingSettings:
    """Return the point that `point_to_json` wrote, or raise `ParameterError` if it is none, or none that this release knows.
    What an earlier release did not know stays open. A sampler that is not known here is a `RecordedSampler` where the point is
    not `to_decode` by."""
    if isinstance(recorded, Mapping):  # what an earlier release wrote
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
    """Hold what a model was trained and calibrated for: an `SBDModel` is one."""

    @property
    def sbd_config(self) -> "SBDModelConfig | None":
        """Return the SBD config, or None where the model was not trained for blocks."""


def with_calibration(
    model: Trained, settings: DecodingSettings | None = None, *, domain: str | None = None
) -> DecodingSettings:
    """Return the settings at the calibrated point of their method, where there is one and they leave the point open. They are
    by default those of a request that gives none; `domain` is as in `calibration_for`."""
    settings = settings or DecodingSettings()
    if not leaves_point_open(settings):
        return settings
    found = calibration_for(model, method=settings.method, domain=domain)
    return settings if found is None else at_calibration(found, settings)


def leaves_point_open(settings: DecodingSettings) -> bool:
    """Return whether settings give nothing of their operating point except, perhaps, the method."""
    return all(getattr(settings, name) == SETTINGS[name].default for name in POINT)


def calibration_for(model: Trained, *, method: Method, domain: str | None = None) -> "CalibratedSetting | None":
    """Return the calibrated setting of a method that a request gets, or None where there is none; without a domain, the most
    careful of all, the slowest. Raise `ParameterError` if the model was not calibrated for the domain."""
    known = () if model.sbd_config is None else model.sbd_config.calibrations
    domains = list(dict.fromkeys(each.domain for each in known))
    if domain is not None and domain not in domains:
        told = f"was calibrated for {', '.join(domains)}" if domains else "was calibrated for none"
        raise ParameterError(f"domain {domain!r} is not known: this model {told}")
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

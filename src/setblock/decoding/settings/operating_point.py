"""Define operating points: the settings that trade accuracy for passes, as plain data that files can hold.

Knows settings. Knows nothing of files, tasks, or of how well a point does.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from setblock.decoding.samplers.named import defaults_of, name_of, options_of, sampler_named
from setblock.decoding.settings.defaults import (
    DEFAULT_DRAFT_LOOKUP,
    block_size_for,
    draft_lookup_for,
    sampler_for,
)
from setblock.decoding.settings.table import METHODS, DecodingSettings, Method
from setblock.errors import ParameterError
from setblock.model.protocol.language_model import LanguageModel


@dataclass(frozen=True)
class OperatingPoint:
    """Hold a way to decode, with every setting decided.

    Attributes:
        method: `ntp` has nothing further.
        sampler: its name in `SAMPLERS`.
        sampler_options: its hyperparameters, all of them.
        block_size: k.
        draft_lookup: as in `DecodingSettings`; None except in method `exact`. A point of an earlier release leaves it open.
    """

    method: Method
    sampler: str | None = None
    sampler_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    block_size: int = 1
    draft_lookup: int | None = None

    @property
    def key(self) -> str:
        """Return a value that is equal for equal points."""
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def label(self) -> str:
        """Return a few words for tables: `entropy-bounded 0.1, k 16`; hyperparameters at their defaults are given by
        name if at all."""
        if self.method == "ntp":
            return "ntp"
        words = [self.sampler_text, f"k {self.block_size}"]
        if self.method == "exact":
            words = ["exact", *words]
            words += [f"lookup {self.draft_lookup}"] if self.draft_lookup not in (None, DEFAULT_DRAFT_LOOKUP) else []
        return ", ".join(words)

    @property
    def sampler_text(self) -> str:
        """Return the sampler, its first hyperparameter, and the others that differ from their defaults."""
        assert self.sampler is not None
        defaults = defaults_of(self.sampler)
        told = [
            _number(value) if place == 0 else f"{name} {_number(value)}"
            for place, (name, value) in enumerate(self.sampler_options.items())
            if place == 0 or value != defaults.get(name)
        ]
        return " ".join([self.sampler, *told])

    def settings(self, shared: DecodingSettings | None = None) -> DecodingSettings:
        """Return the settings of a request: this point's, and for everything else those of `shared`."""
        shared = shared or DecodingSettings()
        if self.method == "ntp":
            return replace(shared, method="ntp")
        assert self.sampler is not None
        return replace(
            shared,
            method=self.method,
            sampler=sampler_named(self.sampler, self.sampler_options),
            block_size=self.block_size,
            draft_lookup=self.draft_lookup,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the point as JSON. JSON has no infinity, so it becomes the text `inf`."""
        options = {
            name: "inf" if isinstance(value, float) and math.isinf(value) else value
            for name, value in self.sampler_options.items()
        }
        return {**asdict(self), "sampler_options": options}


NTP = OperatingPoint("ntp")
_WITHOUT_EFFECT = (("adaptive_blocks", False), ("draft_passes", None), ("draft_passes", 1))


def point_of(model: LanguageModel, settings: DecodingSettings) -> OperatingPoint:
    """Return the operating point of a request's settings, with open settings filled in.

    Raises:
        SetBlockError: the model can't be decoded so.
    """
    if settings.method == "ntp":
        return NTP
    sampler, has_draft_text = sampler_for(settings), model.draft_text is not None
    lookup = draft_lookup_for(model.facts, settings, has_draft_text=has_draft_text)
    return OperatingPoint(
        method=settings.method,
        sampler=name_of(sampler),
        sampler_options=options_of(sampler),
        block_size=block_size_for(model, settings),
        draft_lookup=lookup if settings.method == "exact" else None,
    )


def point_from_json(recorded: Any) -> OperatingPoint:
    """Return the point that `to_json` wrote.

    Raises:
        ParameterError: it is none, or none that this release knows.
    """
    known = {each.name for each in fields(OperatingPoint)}
    if isinstance(recorded, Mapping):  # of an earlier release, which had more
        recorded = {name: value for name, value in recorded.items() if (name, value) not in _WITHOUT_EFFECT}
    if not isinstance(recorded, Mapping) or not {"method"} <= recorded.keys() <= known:
        raise ParameterError(f"an operating point must have the keys {', '.join(sorted(known))}, not be {recorded!r}")
    if recorded["method"] not in METHODS:
        raise ParameterError(f"method must be one of {', '.join(METHODS)}, not {recorded['method']!r}")
    if recorded["method"] == "ntp":
        return NTP
    if not isinstance(recorded.get("sampler"), str) or not isinstance(recorded.get("sampler_options", {}), Mapping):
        raise ParameterError(f"an operating point of method {recorded['method']} must name a sampler")
    sampler = sampler_named(recorded["sampler"], recorded.get("sampler_options", {}))
    point = OperatingPoint(**{**recorded, "sampler_options": options_of(sampler)})
    point.settings()  # its ranges
    return point


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

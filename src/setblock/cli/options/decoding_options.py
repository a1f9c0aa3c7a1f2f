"""The decoding options: an option for each setting that the command line has, and the settings that they give.

Names, help and ranges are those of the table, `setblock.decoding.settings.table`.
"""

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.cli.messages import print_message
from setblock.cli.options.groups import DECODING, OUTPUT, SAMPLING, AvailableOptions, option, option_group, rare
from setblock.decoding.samplers.named import SAMPLERS
from setblock.decoding.settings.resolve import (
    at_calibration,
    calibration_for,
    leaves_point_open,
    requested_settings,
    sampler_to_dict,
)
from setblock.decoding.settings.setting import Group
from setblock.decoding.settings.table import HYPERPARAMETERS, DecodingSettings, available
from setblock.errors import ParameterError
from setblock.files import module_of

if TYPE_CHECKING:
    from setblock.model.protocol.runtime import LanguageModel

_PANELS: dict[Group, str] = {"point": DECODING, "answer": DECODING, "sampling": SAMPLING, "report": OUTPUT}
_LISTED = {list[int]: list[int], list[str]: list[str], dict[int, float]: list[str]}

AVAILABLE = available(
    but_not=("structure",),  # each kind of form has an option
    names={"stop_token_ids": "stop_token_id", "banned_tokens": "ban"},
)


def available_settings(*groups: Group) -> AvailableOptions:
    """Return an option for each setting of these groups, and after `sampler` an option for its parameters."""
    available: AvailableOptions = {}
    for called, row in AVAILABLE.items():
        if row.group in groups:
            kind = _LISTED.get(row.type, row.type)
            is_open = row.default is None or row.type in _LISTED
            available[row.name] = (kind | None if is_open else kind, setting_option(called))
        if row.name == "sampler" and "point" in groups:
            help_text = (
                "A parameter of the sampler, such as factor=0.5. Can be repeated. The error for an unknown KEY lists the valid "
                "ones."
            )
            available["sampler_options"] = (list[str] | None, rare(help_text, "--sampler-option", metavar="KEY=VALUE"))
    return available


def setting_option(called: str) -> Any:
    """Return the option of a setting, by its name in `AVAILABLE`."""
    row = AVAILABLE[called]
    help_text, is_listed = row.help, row.type in _LISTED
    if str(row.range) and str(row.range) not in help_text:
        help_text += f" {str(row.range)[0].upper()}{str(row.range)[1:]}."
    if is_listed:
        help_text += " Can be repeated."
    if row.name == "sampler":
        help_text += f" Available: {', '.join(SAMPLERS)}; or a class in a file, such as my_file.py:Clear."
    metavar = row.metavar if row.type in (int, float, str) or is_listed else None
    default = None if is_listed else row.default
    typed, panel = f"--{called.replace('_', '-')}", _PANELS[row.group]
    return option(default, help_text, typed, panel=panel, metavar=metavar, is_rare=row.name not in _COMMON)


_COMMON = ("method", *HYPERPARAMETERS, "block_size", "max_new_tokens", "temperature", "top_p", "seed", "stop")
"""What `--help` shows. The rest is in `--help-all`."""


@option_group(DECODING, available=available_settings("point"))
class PointOptions:
    """The options of an operating point. None in a field means the library's default."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the settings

    def settings(self) -> DecodingSettings:
        """Return the settings, or raise `ParameterError` if an option is malformed, unknown or out of its range."""
        with_own_sampler(self.sampler)
        requested = {row.name: getattr(self, row.name, None) for row in AVAILABLE.values()}
        if biases := requested.get("logit_bias"):
            requested["logit_bias"] = dict(_bias(text) for text in biases)
        return requested_settings(
            {**requested, "sampler_options": key_values("--sampler-option", self.sampler_options)}
        )


@option_group(DECODING, available=available_settings("answer", "sampling"))
class DecodingOptions(PointOptions):
    """The options of decoding an answer."""

    domain: str | None = rare(
        "Use the setting that `setblock calibrate` found for this domain. Default: the slowest, and so the most "
        "careful, of all domains.",
        metavar="NAME",
    )

    def settings_for(self, model: "LanguageModel") -> DecodingSettings:
        """Return the settings, at the model's calibrated point if no option sets another; a line reports it. Raise
        `ParameterError` as in `settings`, or if the model was not calibrated for the domain."""
        settings = self.settings()
        is_open = leaves_point_open(settings) and settings.method != "ntp"
        if self.domain is not None and not is_open:
            raise ParameterError(
                "--domain chooses among calibrated settings: give no other option of the setting itself"
            )
        found = calibration_for(model, method=settings.method, domain=self.domain) if is_open else None
        if found is None:
            return settings
        calibrated = at_calibration(found, settings)
        point = f"method {calibrated.method}, {sampler_text(calibrated)}, block size {calibrated.block_size}"
        print_message(f"calibrated for {found.domain}: {point} ({found.tolerance})")
        return calibrated


def key_values(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return the keys, with underscores, and values of an option KEY=VALUE, or raise `ParameterError` if a text has no `=`,
    or a key is there twice."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(f"{option} must be KEY=VALUE, not {text!r}")
        key = key.strip().replace("-", "_")
        if key in found:
            raise ParameterError(f"{key} is given more than once")
        found[key] = value
    return found


def template_kwargs(option: str, text: str | None) -> dict[str, Any]:
    """Return the arguments of chat templates, given as a JSON object. Raise `ParameterError` if the text is not one."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ParameterError(f"{option} must be a JSON object such as '{{\"enable_thinking\": false}}', not {text!r}")
    return found


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise ParameterError(f"--logit-bias must be ID=BIAS, such as 42=-1.5, not {text!r}") from error


def with_own_sampler(name: str | None) -> None:
    """Register the class of a name such as `my_file.py:Clear` as a sampler of this process. Raise `ParameterError` if there is
    no such class, its code fails, or it is not a sampler.

    Only the command line reads such names: a client of a server must not choose which code runs.
    """
    if name is None or ".py:" not in name:
        return
    path, _, kind = name.rpartition(":")
    found = getattr(module_of(Path(path).expanduser()), kind, None)
    if not (isinstance(found, type) and is_dataclass(found) and callable(getattr(found, "select", None))):
        raise ParameterError(f"sampler {name}: {path} must define {kind} as a dataclass with the method select")
    SAMPLERS[name] = found


def sampler_json(settings: DecodingSettings) -> dict[str, Any]:
    """Return the sampler's entries in a report's JSON; all are None in method `ntp`, which has no sampler."""
    summary = sampler_to_dict(settings)
    return {**summary, **{name: (summary["sampler_options"] or {}).get(name) for name in HYPERPARAMETERS}}


def sampler_text(settings: DecodingSettings) -> str:
    """Return the sampler and its parameters in a few words."""
    summary = sampler_to_dict(settings)
    options = summary["sampler_options"].items()
    values = ", ".join(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in options)
    return f"{summary['sampler']} ({values})" if values else str(summary["sampler"])

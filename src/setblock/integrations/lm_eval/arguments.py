"""`DecodingSettings` from the harness's model arguments (`--model_args`) and a request's generation arguments (a task's
`generation_kwargs`, `--gen_kwargs`). An argument without a counterpart is an error that names it."""

from collections.abc import Mapping
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from setblock.decoding.settings.resolve import requested_settings, sampler_to_dict
from setblock.decoding.settings.table import HYPERPARAMETERS, POINT, DecodingSettings, available, with_current_names
from setblock.errors import ParameterError

_OF_THE_MODEL = ("method", *POINT, "seed")
AVAILABLE = available(but_not=("prefill_chunk", "max_new_tokens", "stop", "n", "logprobs"))  # its own words, or nothing
_OF_A_REQUEST = tuple(name for name in AVAILABLE if name != "sampler")
_WITHOUT_MEANING: dict[str, tuple[Any, ...]] = {"num_beams": (1,), "use_cache": (True, False)}  # where they are this


def settings_from(arguments: Mapping[str, Any]) -> DecodingSettings:
    """Return the settings that model arguments give: `method`, `seed`, the settings of the operating point, and hyperparameters
    of the sampler. They are the defaults of every request. Raise `ParameterError` if one is not valid."""
    for name in arguments:
        if name in _OF_A_REQUEST and name not in (*_OF_THE_MODEL, *HYPERPARAMETERS):
            raise ParameterError(f"model argument {name!r} belongs to a request: give it with --gen_kwargs")
    return requested_settings(arguments, available=_OF_THE_MODEL, noun="model argument")


def request_settings(
    base: DecodingSettings, generation: Mapping[str, Any], *, default_max_gen_toks: int
) -> DecodingSettings:
    """Return the settings of a request: those of `base`, overridden by the generation arguments of the task or the user.

    `until` and the stop strings of `base` end the answer. Without `do_sample` or a temperature decoding is greedy, as with
    any model of the harness; with `do_sample` alone the temperature is 1. Raise `ParameterError` if an argument is unknown
    or not valid.
    """
    requested = dict(normalize_gen_kwargs(with_current_names(generation), default_max_gen_toks))
    until, max_gen_toks, do_sample = requested.pop("until"), requested.pop("max_gen_toks"), requested.pop("do_sample")
    requested["temperature"] = requested.get("temperature", 1.0) if do_sample else 0.0
    own = {name: requested.pop(name) for name in HYPERPARAMETERS if name in requested}
    for name, value in requested.items():
        if name not in _OF_A_REQUEST and value not in _WITHOUT_MEANING.get(name, ()):
            known = ", ".join(sorted({*_OF_A_REQUEST, "do_sample", "max_gen_toks", "until"}))
            raise ParameterError(f"generation argument {name}={value!r} is not known; there are {known}")
    values = {name: value for name, value in requested.items() if name in _OF_A_REQUEST}
    stop = tuple(dict.fromkeys([*base.stop, *(text for text in until if text)]))
    settings = requested_settings({**values, "max_new_tokens": max_gen_toks, "stop": stop}, base=base)
    if not own or settings.method == "ntp":  # the same task by plain decoding, which has no sampler
        return settings
    try:
        return requested_settings(own, base=settings)
    except ParameterError as error:
        arguments_text = ", ".join(f"{name}={value!r}" for name, value in own.items())
        raise ParameterError(f"generation argument {arguments_text}: {error}") from error


def described(settings: DecodingSettings) -> dict[str, Any]:
    """Return settings for a result file: those that differ from the default, the sampler by the names that select it, and in
    method `exact` what determines how much is drafted, since the number of passes depends on it."""
    record = {"method": settings.method, **settings.changed()}
    record |= {"drafts": settings.drafts} if settings.method == "exact" else {}
    record.pop("sampler", None)
    return record if settings.method == "ntp" else {**record, **sampler_to_dict(settings)}

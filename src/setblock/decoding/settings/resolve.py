"""Settings of a request, from what was asked to the checked parameters of its rows.

    names and values -> `requested_settings` -> `with_calibration` -> `resolved` -> `check_rows`

The command line, the server and all other callers use it. It imports PyTorch only to check rows.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from setblock.decoding.samplers.named import (
    SAMPLERS,
    RecordedSampler,
    name_of,
    options_of,
    parameters_of,
    sampler_named,
)
from setblock.decoding.settings.table import (
    HYPERPARAMETERS,
    MAX_TOKENS,
    POINT,
    RENAMED,
    SETTINGS,
    DecodingSettings,
    Method,
    RequestParams,
    with_current_names,
)
from setblock.errors import ParameterError, SetBlockError, did_you_mean, warn

if TYPE_CHECKING:
    from setblock.decoding.answer.detokenize import AnswerText
    from setblock.decoding.constraints.constraint import TokenConstraint
    from setblock.decoding.constraints.rows import RowConstraints
    from setblock.decoding.samplers.base import Sampler
    from setblock.model.protocol.runtime import LanguageModel
    from setblock.model.protocol.sbd_config import CalibratedSetting, SBDModelConfig

# 1. What was asked


def requested_settings(
    requested: Mapping[str, Any],
    *,
    base: DecodingSettings | None = None,
    available: Collection[str] = tuple(SETTINGS),
    noun: str = "parameter",
) -> DecodingSettings:
    """Return the settings of `base` with those requested. Raise `ParameterError` if a name or a value is not valid.

    Args:
        requested: settings by their names in the table; `sampler` may be a name. Hyperparameters of the sampler are a
            mapping under `sampler_options`, or entries of their own. Without a sampler they replace those of the
            sampler in `base`, or of the method's default one. Entries that are None are ignored.
        base: by default the settings of a request without settings.
        available: the settings that may be requested.
        noun: what an error calls an unknown name, such as "parameter".
    """
    if base is not None and not isinstance(base, DecodingSettings):
        raise ParameterError(f"settings must be DecodingSettings, not {base!r}")
    given = {name: value for name, value in with_current_names(requested).items() if value is not None}
    chosen, options = given.pop("sampler", None), dict(given.pop("sampler_options", {}))
    values = {name: given.pop(name) for name in available if name in given and name in SETTINGS}
    settings = replace(base or DecodingSettings(), **values)
    hyperparameters, before = [*options, *given], {}
    if hasattr(chosen, "select"):
        if hyperparameters:
            raise ParameterError(
                f"{hyperparameters[0]} must be set in the sampler object, or give the sampler by its name"
            )
        return replace(settings, sampler=chosen)
    if chosen is None:
        if not hyperparameters:
            return settings
        sampler = sampler_for(settings)
        chosen, before = name_of(sampler), options_of(sampler)
    for name, value in given.items():
        if name in options:
            raise ParameterError(f"{name} is given more than once")
        if name not in HYPERPARAMETERS and name not in (own := parameters_of(chosen)):
            known = list(dict.fromkeys([*available, "sampler"]))
            raise ParameterError(
                f"{noun} {name!r} is not known{did_you_mean(name, [*known, *own])}; there are {', '.join(known)}, and of "
                f"sampler {chosen} {', '.join(own) or 'none'}"
            )
        options[name] = value
    return replace(settings, sampler=sampler_named(chosen, before | options))


def sampler_to_dict(settings: DecodingSettings) -> dict[str, Any]:
    """Return a sampler's name as `sampler` and its hyperparameters as `sampler_options`; None in method `ntp`."""
    if settings.method == "ntp":
        return {"sampler": None, "sampler_options": None}
    sampler = sampler_for(settings)
    return {"sampler": name_of(sampler), "sampler_options": options_of(sampler)}


# 2. What a model was calibrated for


NTP = DecodingSettings(method="ntp", block_size=1)
POINT_KEYS = ("method", "sampler", "sampler_options", *(name for name in POINT if name != "sampler"))
"""The keys of an operating point in JSON."""


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


def at_point(point: DecodingSettings, base: DecodingSettings | None = None) -> DecodingSettings:
    """Return settings at an operating point, with everything else from `base`."""
    return replace(base or DecodingSettings(), **{name: getattr(point, name) for name in ("method", *POINT)})


def point_from_json(recorded: Any, *, to_decode: bool = True) -> DecodingSettings:
    """Return the point that `point_to_json` wrote. Settings that an earlier release didn't have stay open. Raise
    `ParameterError` if it is not a point, or not one that this release knows. `to_decode`: whether it will be decoded
    with; if not, an unknown sampler becomes a `RecordedSampler`."""
    if isinstance(recorded, Mapping):  # names of an earlier release
        recorded = {RENAMED.get(key, key): value for key, value in recorded.items()}
    if not isinstance(recorded, Mapping) or not {"method"} <= recorded.keys() <= {*POINT_KEYS}:
        raise ParameterError(
            f"an operating point must have the keys {', '.join(sorted(POINT_KEYS))}, not be {recorded!r}"
        )
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


# 3. What is left open


DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_BLOCK_SIZE = 16
DRAFT_GAMMA = float("inf")  # a draft is the whole block: checking wrong tokens costs no extra pass (docs/exact.md)


def resolved(
    settings: DecodingSettings, sbd_config: "SBDModelConfig | None", *, has_draft_text: bool = False
) -> DecodingSettings:
    """Return the settings with those of the operating point resolved: open ones follow from the model, and those
    without effect in the method are at their defaults. The block size is 1 in method `ntp`. `has_draft_text`: whether
    the model has a text to copy drafts from. Raise `SetBlockError` for method `sbd` if the model was never trained for
    blocks."""
    method = settings.method
    if sbd_config is None and method == "sbd":
        raise SetBlockError(
            "method 'sbd' needs a model that was trained for blocks, and this one has no mask token: use method 'exact' or "
            "'ntp', or fine-tune it with `setblock train`"
        )
    prompt_lookup = prompt_lookup_for(sbd_config, settings, has_draft_text=has_draft_text)
    # Copies may be longer than trained blocks, if the lengths of copies and blocks are chosen for each pass
    is_resolved = method == "exact" and settings.drafts == "adaptive" and prompt_lookup > 0
    trained = () if sbd_config is None or is_resolved else sbd_config.block_sizes
    found: dict[str, Any] = {
        "sampler": sampler_for(settings),
        "block_size": settings.block_size or usual_block_size(trained),
        "prompt_lookup": prompt_lookup,
    }
    found |= {name: SETTINGS[name].default for name in POINT if not SETTINGS[name].acts_in(method)}
    return replace(settings, **found | ({"block_size": 1} if method == "ntp" else {}))


def usual_block_size(trained: Sequence[int]) -> int:
    """Return the largest of the block sizes that a model was trained with, at most 16."""
    return min(DEFAULT_BLOCK_SIZE, max(trained, default=DEFAULT_BLOCK_SIZE))


def prompt_lookup_for(
    sbd_config: "SBDModelConfig | None", settings: DecodingSettings, *, has_draft_text: bool = False
) -> int:
    """Return how many tokens must match before method `exact` copies a draft from the text, or from a draft text."""
    if settings.prompt_lookup is not None:
        return settings.prompt_lookup
    if sbd_config is None or (sbd_config.noisy_adapter and settings.drafts == "adaptive"):
        return 1  # a model never trained for blocks has no other drafts, and adaptive drafts use what pays
    if sbd_config.noisy_adapter:
        return 2  # an adapter on the future block drafts less well (docs/real-model.md)
    # Short matches mislead a model that drafts well (docs/log.md). But a draft text is there to be used
    return 2 if has_draft_text else 0


def sampler_for(settings: DecodingSettings) -> "Sampler":
    """Return the requested sampler, or the default of the method. In `exact` it drafts whole blocks, since errors are
    corrected; in `sbd`, where nothing is checked, it leaves no gaps (docs/gaps.md)."""
    from setblock.decoding.samplers import EntropyBounded, EntropyPrefix

    return settings.sampler or (EntropyBounded(DRAFT_GAMMA) if settings.method == "exact" else EntropyPrefix())


# 4. Whether a model can do it


def limit_of(model: "LanguageModel", prompt_length: int, settings: DecodingSettings) -> int:
    """Return the position past the last one of an answer. Raise `SetBlockError` if the prompt is empty, or prompt and
    answer are too long together."""
    context, wanted = model.context_length, settings.max_new_tokens
    room = MAX_TOKENS if context is None else context - prompt_length
    if prompt_length == 0:
        raise SetBlockError("prompt must not be empty")
    if room <= 0:
        raise SetBlockError(
            f"prompt has {prompt_length} tokens; this model's context holds {context}, answer included: shorten the prompt"
        )
    if wanted is not None and wanted > room:
        raise SetBlockError(
            f"max_new_tokens must be at most {room} after a prompt of {prompt_length} tokens (the context holds {context}), "
            f"not {wanted}"
        )
    return prompt_length + (min(DEFAULT_MAX_NEW_TOKENS, room) if wanted is None else wanted)


def check_tokens(model: "LanguageModel", prompt: Sequence[int], row: RequestParams) -> None:
    """Raise `SetBlockError` if a token id is not in the model's vocabulary, or the request bans every token."""
    settings, vocab_size = row.settings, model.vocab_size
    named = {name: getattr(settings, name) for name in ("logit_bias", "banned_tokens", "stop_token_ids")}
    for name, token_ids in {"the prompt": prompt, **named}.items():
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                error = ParameterError if name in named else SetBlockError
                raise error(f"token ids of {name} must be between 0 and {vocab_size - 1}, not {token_id}")
    if not settings.banned_tokens:
        return
    out = {*settings.banned_tokens, model.sbd_config.mask_token_id if model.sbd_config else None} - {None}
    if len(out | {*row.ends} if settings.min_new_tokens else out) >= vocab_size:
        before = " that does not end the answer before min_new_tokens" if len(out) < vocab_size else ""
        raise ParameterError(f"banned_tokens must leave the model a token{before}, not ban all {vocab_size}")


def check_count(prompts: Sequence[object], settings: Sequence[DecodingSettings]) -> None:
    """Raise `ParameterError` unless there are as many settings as prompts."""
    if len(settings) != len(prompts):
        raise ParameterError(
            f"settings must be one for all, or a list with one for each of the {len(prompts)} prompts, not {len(settings)}"
        )


@dataclass(frozen=True)
class CheckedRows:
    """Requests that a model can answer, checked but not yet a batch. Nothing of them is on the device."""

    model: "LanguageModel"
    prompts: Sequence[Sequence[int]]  # token ids
    params: Sequence[RequestParams]  # of each row, with the model's calibrated settings
    constraints: "Sequence[RowConstraints]"  # of each row; the last one is its text, which is also in `texts`
    texts: "list[AnswerText]"
    started: float  # `time.perf_counter()` when they were checked


def check_rows(
    model: "LanguageModel", prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> CheckedRows:
    """Check requests against the model; each is one answer. A request that leaves its operating point open gets the
    model's calibrated one. Raise `SetBlockError` if a prompt is empty or too long, or a request needs what the model
    can't do."""
    from setblock.decoding.answer.detokenize import AnswerText
    from setblock.decoding.constraints.rows import RowConstraints

    started = time.perf_counter()
    check_count(prompts, settings)
    requested = [with_calibration(model, each) for each in settings]
    params = [params_of(model, len(prompt), each) for prompt, each in zip(prompts, requested, strict=True)]
    # Method `sbd` may use a larger block than any that the model was trained with, but nothing checks its text
    largest = max((each.block_size for each in params if each.settings.method == "sbd"), default=0)
    if model.sbd_config and model.sbd_config.block_sizes and largest > (most := model.sbd_config.block_sizes[-1]):
        message = f"block_size {largest} is larger than any this model was trained with (at most {most})"
        warn(f"{message}: expect worse text")
    for prompt, row in zip(prompts, params, strict=True):
        check_tokens(model, prompt, row)
    texts = [AnswerText(model.tokenizer, stop=each.stop, min_new_tokens=each.min_new_tokens) for each in requested]
    constraints = [RowConstraints([*constraints_of(model, row), text]) for row, text in zip(params, texts, strict=True)]
    return CheckedRows(model, prompts, params, constraints, texts, started)


def constraints_of(model: "LanguageModel", row: RequestParams) -> "list[TokenConstraint]":
    """Return the constraints of a row: that of its `structure`, if it has one, and those of its request. Raise
    `SetBlockError` if the model can't keep to the structure."""
    from setblock.decoding.constraints.grammar import GrammarGuide

    form, own = row.settings.structure, row.settings.constraints
    if form is not None and not row.ends:
        raise SetBlockError("structure needs a model with an end-of-text token: give stop_token_ids")
    restricting: list[TokenConstraint] = [] if form is None else [GrammarGuide(form, model.tokenizer, ends=row.ends)]
    return [*restricting, *(maker.constraint(row, vocab_size=model.vocab_size) for maker in own)]


def params_of(model: "LanguageModel", prompt_length: int, settings: DecodingSettings) -> RequestParams:
    """Return the fixed parameters of a request's row. Errors are those of `limit_of` and `resolved`."""
    limit = limit_of(model, prompt_length, settings)
    room = 1 << (limit - prompt_length - 1).bit_length()  # rounded up, so that a compiled model sees few block sizes
    settings = resolved(settings, model.sbd_config, has_draft_text=model.draft_text is not None)
    return RequestParams(
        settings=settings,
        block_size=min(settings.block_size or 1, room),
        prompt_length=prompt_length,
        limit=limit,
        ends=(*model.end_of_text_ids, *settings.stop_token_ids),
    )

"""Check that a model can do what requests ask, and fix the terms of those that it can answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from setblock.decoding.answer.text import AnswerText
from setblock.decoding.constraints.constraint import RowConstraints, TokenConstraint
from setblock.decoding.settings.operating_point import with_calibration
from setblock.decoding.settings.resolve import DEFAULT_MAX_NEW_TOKENS, resolved
from setblock.decoding.settings.table import MAX_TOKENS, DecodingSettings
from setblock.decoding.state.state import RequestParams
from setblock.errors import ParameterError, SetBlockError, warn
from setblock.model.protocol.runtime import LanguageModel
from setblock.structure.compiled import Matcher


class GrammarGuide(Matcher, TokenConstraint):
    """Restrict which tokens may come next in an answer of some form."""

    constrains = True


def limit_of(model: LanguageModel, prompt_length: int, settings: DecodingSettings) -> int:
    """Return the position past the last of an answer. Raise `SetBlockError` if the prompt is empty or the two are too long."""
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


def check_tokens(model: LanguageModel, prompt: Sequence[int], row: RequestParams) -> None:
    """Raise `SetBlockError` if a token id of a request is none of the model's, or it bans every token."""
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
    """Raise `ParameterError` if there are not as many settings as prompts."""
    if len(settings) != len(prompts):
        raise ParameterError(
            f"settings must be one for all, or a list with one for each of the {len(prompts)} prompts, not {len(settings)}"
        )


@dataclass(frozen=True)
class CheckedRows:
    """Hold requests that a model can answer, before their rows are opened. Nothing of them is on the device yet."""

    model: LanguageModel
    prompts: Sequence[Sequence[int]]  # token ids
    params: Sequence[RequestParams]  # what is fixed of each row: settings with what the model was calibrated to
    constraints: Sequence[RowConstraints]  # of each row; the last is its text, which is also in `texts`
    texts: list[AnswerText]
    started: float  # `time.perf_counter()` when they were checked


def check_rows(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> CheckedRows:
    """Check requests against the model; each is one answer. A row that leaves its operating point open gets the model's
    calibrated one. Raise `SetBlockError` if a prompt is empty or too long, or a row asks for what the model can't do."""
    started = time.perf_counter()
    check_count(prompts, settings)
    requested = [with_calibration(model, each) for each in settings]
    params = [terms_of(model, len(prompt), each) for prompt, each in zip(prompts, requested, strict=True)]
    # A block that nothing checks may be larger than any that the model was trained with
    largest = max((each.block_size for each in params if each.settings.method == "sbd"), default=0)
    if model.sbd_config and model.sbd_config.block_sizes and largest > (most := model.sbd_config.block_sizes[-1]):
        told = f"block_size {largest} is larger than any this model was trained with (at most {most})"
        warn(f"{told}: expect worse text")
    for prompt, row in zip(prompts, params, strict=True):
        check_tokens(model, prompt, row)
    texts = [AnswerText(model.tokenizer, stop=each.stop, min_new_tokens=each.min_new_tokens) for each in requested]
    constraints = [RowConstraints([*companions_of(model, row), text]) for row, text in zip(params, texts, strict=True)]
    return CheckedRows(model, prompts, params, constraints, texts, started)


def companions_of(model: LanguageModel, row: RequestParams) -> list[TokenConstraint]:
    """Return what holds a row's answer to its form, if it has one, and the constraints that its request brings. Raise
    `SetBlockError` if this model can't keep to the form."""
    form, own = row.settings.structure, row.settings.constraints
    if form is not None and not row.ends:
        raise SetBlockError("structure needs a model with an end-of-text token: give stop_token_ids")
    restricting = [] if form is None else [GrammarGuide(form, model.tokenizer, ends=row.ends)]
    return [*restricting, *(maker.constraint(row, vocab_size=model.vocab_size) for maker in own)]


def terms_of(model: LanguageModel, prompt_length: int, settings: DecodingSettings) -> RequestParams:
    """Return what is fixed of a request's row. Errors are those of `limit_of` and `resolved`."""
    limit = limit_of(model, prompt_length, settings)
    room = 1 << (limit - prompt_length - 1).bit_length()  # rounded up, so that a compiled model meets few block sizes
    settings = resolved(settings, model.sbd_config, has_draft_text=model.draft_text is not None)
    block_size = min(settings.block_size or 1, room)
    return RequestParams(
        settings=settings,
        block_size=block_size,
        prompt_length=prompt_length,
        limit=limit,
        ends=(*model.end_of_text_ids, *settings.stop_token_ids),
        branches=min(settings.branches or 0, block_size - 1),
    )

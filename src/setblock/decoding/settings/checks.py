"""The checks of requests against a model (`check_rows`), which give the parameters of their rows."""

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
    """The constraint that keeps an answer to the form of its `structure`."""

    constrains = True


def limit_of(model: LanguageModel, prompt_length: int, settings: DecodingSettings) -> int:
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


def check_tokens(model: LanguageModel, prompt: Sequence[int], row: RequestParams) -> None:
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

    model: LanguageModel
    prompts: Sequence[Sequence[int]]  # token ids
    params: Sequence[RequestParams]  # of each row, with the model's calibrated settings
    constraints: Sequence[RowConstraints]  # of each row; the last one is its text, which is also in `texts`
    texts: list[AnswerText]
    started: float  # `time.perf_counter()` when they were checked


def check_rows(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> CheckedRows:
    """Check requests against the model; each is one answer. A request that leaves its operating point open gets the
    model's calibrated one. Raise `SetBlockError` if a prompt is empty or too long, or a request needs what the model
    can't do."""
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


def constraints_of(model: LanguageModel, row: RequestParams) -> list[TokenConstraint]:
    """Return the constraints of a row: that of its `structure`, if it has one, and those of its request. Raise
    `SetBlockError` if the model can't keep to the structure."""
    form, own = row.settings.structure, row.settings.constraints
    if form is not None and not row.ends:
        raise SetBlockError("structure needs a model with an end-of-text token: give stop_token_ids")
    restricting = [] if form is None else [GrammarGuide(form, model.tokenizer, ends=row.ends)]
    return [*restricting, *(maker.constraint(row, vocab_size=model.vocab_size) for maker in own)]


def params_of(model: LanguageModel, prompt_length: int, settings: DecodingSettings) -> RequestParams:
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

"""Set block decoding behind Transformers' own `generate`: a callable for `custom_generate`, and what a checkpoint's code calls.

`generate` replaces `model.generate`: it takes the arguments that Transformers doesn't pass to a callable, and lets Transformers
prepare the rest, so that arguments, defaults and warnings are Transformers'. Every field that could change the output is mapped
or refused, also those that a future release adds.
"""

import copy
import inspect
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from setblock import devices
from setblock.decoding.settings.resolve import requested_settings
from setblock.decoding.settings.table import RENAMED, DecodingSettings, available
from setblock.engine.generate import together
from setblock.errors import ParameterError, SetBlockError
from setblock.model.loading.loading import refuse_unsupported
from setblock.model.probe.probe import plan_attention
from setblock.model.protocol.sbd_config import read_sbd_config
from setblock.model.sbd_model import SBDModel

_HAS_FIELDS = """
    max_new_tokens min_new_tokens stop stop_token_ids temperature top_k top_p min_p repetition_penalty logit_bias banned_tokens
""".split()
AVAILABLE = available(but_not=("prefill_chunk", *_HAS_FIELDS, "n", "logprobs"))
OPTIONS = (*AVAILABLE, "stop_strings")
"""The further arguments of a call: settings without a field in Transformers, by their names in `DecodingSettings`, and
`stop_strings` (Transformers doesn't pass its own to a callable). A `sampler` may be a name. Without a `seed` one is drawn from
PyTorch's global generator, which `set_seed` sets."""


def generate(
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    *,
    model: PreTrainedModel,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode in blocks as `model.generate`.

    A checkpoint's `custom_generate/generate.py` calls this; you can call it too, with the model as an argument.

    Args:
        inputs, generation_config, streamer, tokenizer: as in `model.generate`.
        model: a causal LM of Transformers, from an SBD checkpoint (or from any, with `method="ntp"`).
        kwargs: other arguments of `model.generate`, and those of `OPTIONS`.

    Returns:
        As `model.generate`: [rows, T] int64, the input ids and behind them the new tokens, padded on the right.

    Raises:
        ValueError: set block decoding does not support an argument or a field of the config; the message names it.
    """
    own = type(model).generate  # `model.generate` may be this function
    if kwargs.get("custom_generate") is not None:
        return own(model, inputs, generation_config, streamer=streamer, tokenizer=tokenizer, **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name not in _OF_THE_HUB}
    _refuse_arguments(model, kwargs)
    if generation_config is not None and generation_config.stop_strings is not None:
        kwargs.setdefault("stop_strings", generation_config.stop_strings)
        generation_config = copy.deepcopy(generation_config)
        generation_config.stop_strings = None
    decode = partial(sbd_generate, streamer=streamer, tokenizer=tokenizer)
    return own(model, inputs, generation_config, streamer=streamer, custom_generate=decode, **kwargs)


def sbd_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    logits_processor: Iterable[Any],
    stopping_criteria: Iterable[Any],
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode in blocks for `model.generate(..., custom_generate=sbd_generate)`, which takes `OPTIONS` as further
    arguments.

    Transformers passes what it has prepared and the arguments that the signature names, but never `streamer` and
    `tokenizer`, which `generate` binds.
    """
    options = {name: model_kwargs.pop(name) for name in (*OPTIONS, *RENAMED) if name in model_kwargs}
    if options.get("stop_strings") and tokenizer is None:
        raise ParameterError("stop_strings need the tokenizer: pass tokenizer=... too")
    if options.get("structure") is not None and tokenizer is None:
        raise ParameterError("structure needs the tokenizer: pass tokenizer=... too")
    # It can't be named above: Transformers would take it for an argument that it need not prepare.
    attention_mask = model_kwargs.get("attention_mask")
    if attention_mask is None:  # left out by Transformers too where there is no padding
        attention_mask = torch.ones_like(input_ids)
    _refuse_model_kwargs(model_kwargs, attention_mask)
    settings = settings_from(generation_config, options, prompt_length=input_ids.shape[1])
    processors = model._get_logits_processor(generation_config, input_ids.shape[1], model_kwargs=model_kwargs)
    refuse_own(logits_processor, built=processors, message=_PROCESSOR)
    refuse_own(stopping_criteria, built=model._get_stopping_criteria(generation_config, []), message=_CRITERION)

    sbd = _sbd_model(model, tokenizer, ends=end_of_text_ids(generation_config))
    rows = zip(input_ids, attention_mask.bool().to(input_ids.device), strict=True)
    prompts = [row[is_real].tolist() for row, is_real in rows]  # without padding
    pad = generation_config.pad_token_id
    new = partial(_columns, pad=next(iter(sbd.end_of_text_ids), None) if pad is None else int(pad))
    answers: list[list[int]] = [[] for _ in prompts]
    finished, streamed = set[int](), 0
    # Each prompt draws with its own seed: a repeated prompt gets two different answers.
    rows_of = [(prompt, settings.of_sample(row)) for row, prompt in enumerate(prompts)]
    for passes in together(sbd, rows_of):
        for each in passes:
            row = int(each.id)
            answers[row] += each.token_ids
            if each.generation is not None:
                if each.generation.error is not None:
                    raise SetBlockError(f"{each.generation.error.message}, in row {row} of the batch")
                answers[row] = each.generation.token_ids  # with the end of text
                finished.add(row)
        if streamer is not None:
            for column in new(answers, finished).T[streamed:]:  # one at a time, as Transformers does
                streamer.put(column)
                streamed += 1
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, new(answers, finished).to(input_ids.device)], dim=1)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


# The signature names every one of `OPTIONS`: Transformers passes only arguments that it finds there
_signature = inspect.signature(sbd_generate)
*_own, _rest = _signature.parameters.values()
_options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*OPTIONS, *RENAMED)]
sbd_generate.__signature__ = _signature.replace(parameters=[*_own, *_options, _rest])  # type: ignore[attr-defined]


def settings_from(config: GenerationConfig, options: Mapping[str, Any], *, prompt_length: int) -> DecodingSettings:
    """Return the settings of a prepared config. Raise `ParameterError` if a field is not supported or a value is not valid.

    Args:
        config: as `generate` passes it: `max_length` and `min_length` count the prompt.
        options: some of `OPTIONS`.
        prompt_length: the length of the batch's prompts, padding included.
    """
    _refuse_fields(config)
    max_new_tokens = config.max_length - prompt_length
    given = config.sequence_bias or ()  # a dictionary, or a list of pairs
    pairs = given.items() if isinstance(given, Mapping) else given
    biases = {_single("sequence_bias", sequence): float(bias) for sequence, bias in pairs}
    never = {token_id for token_id, bias in biases.items() if bias == -torch.inf}
    requested = dict(options)
    words = {_single("bad_words_ids", word) for word in config.bad_words_ids or ()}
    words -= {*end_of_text_ids(config)}  # as Transformers does
    base = DecodingSettings(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min(max((config.min_length or 0) - prompt_length, 0), max_new_tokens),
        repetition_penalty=config.repetition_penalty or 1.0,
        logit_bias={token_id: bias for token_id, bias in biases.items() if token_id not in never},
        banned_tokens=sorted({*never, *words, *(_plain(config.suppress_tokens) or ())}),
        stop=requested.pop("stop_strings", None) or (),
    )
    if config.do_sample:
        requested |= {name: getattr(config, name) for name in ("top_k", "top_p", "min_p")}
        requested["temperature"] = 1.0 if config.temperature is None else config.temperature
        if requested.get("seed") is None:
            requested["seed"] = int(torch.randint(2**62, ()))
    return requested_settings(requested, base=base)


def end_of_text_ids(config: GenerationConfig) -> tuple[int, ...]:
    """Return the token ids that end an answer."""
    ids = config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(int(each) for each in ids)


def refuse_own(given: Iterable[Any], *, built: Iterable[Any], message: str) -> None:
    """Raise `ParameterError` with the message `message` if a processor or criterion in `given` is not one that Transformers has
    `built` from the config. Types and attributes are compared: a user's may have the same type and other values."""
    left = [_held(each) for each in built]
    for each in given:
        if (held := _held(each)) not in left:
            raise ParameterError(message.format(type(each).__name__))
        left.remove(held)


def _held(each: Any) -> tuple[type, dict[str, Any]]:
    return type(each), {name: _plain(value) for name, value in getattr(each, "__dict__", {}).items()}


_MAPPED = """
    max_length max_new_tokens min_length min_new_tokens do_sample temperature top_k top_p min_p repetition_penalty
    bad_words_ids suppress_tokens sequence_bias num_return_sequences return_dict_in_generate pad_token_id eos_token_id
    stop_strings
""".split()

# Fields that change no token: where a cache is stored, settings of beams and draft models that aren't used.
_HARMLESS = """
    bos_token_id decoder_start_token_id use_cache cache_config max_cache_len compile_config disable_compile low_memory
    prefill_chunk_size continuous_batching_config renormalize_logits early_stopping length_penalty num_assistant_tokens
    num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind
    assistant_ensemble_weight max_matching_ngram_size speculation_type transformers_version
""".split()

_ONLY_IF_SAMPLING = {"typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"}
_OFF: dict[str, tuple[Any, ...]] = {  # besides None and False
    **dict.fromkeys("num_beams num_beam_groups typical_p encoder_repetition_penalty guidance_scale".split(), (1,)),
    **dict.fromkeys("no_repeat_ngram_size encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff".split(), (0,)),
    **dict.fromkeys("diversity_penalty penalty_alpha".split(), (0,)),
    "cache_implementation": ("dynamic", "static", "offloaded", "offloaded_static", "hybrid"),
}
_OF_A_PASS = "a block's tokens are chosen from the outputs of several passes"
_REASONS = dict.fromkeys(["output_scores", "output_logits", "output_attentions", "output_hidden_states"], _OF_A_PASS)


def _refuse_fields(config: GenerationConfig) -> None:
    names = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name in sorted(names.difference(_MAPPED, _HARMLESS, () if config.do_sample else _ONLY_IF_SAMPLING)):
        value = getattr(config, name, None)
        if value is not None and value is not False and value not in _OFF.get(name, ()):
            reason = _REASONS.get(name, "unset it, or use Transformers' own decoding")
            raise ParameterError(f"{name}={value!r} is not supported in set block decoding: {reason}")


def _single(field: str, sequence: Sequence[int]) -> int:
    if len(sequence) != 1:
        raise ParameterError(f"{field} must be of single tokens here, not of {list(sequence)}")
    return sequence[0]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else list(value) if isinstance(value, tuple) else value


_PROCESSOR = (
    "logits_processor {} can't be applied: it reads the text to the left of a token, and a block chooses tokens before that is "
    "final"
)
_CRITERION = (
    "stopping_criteria {} can't be applied: it is made to be asked after each token, and a pass adds several; max_new_tokens, "
    "eos_token_id and stop_strings can end an answer"
)
_OF_THE_HUB = {  # where a checkpoint's code came from; Transformers passes them on
    *"cache_dir force_download proxies token revision local_files_only repo_type subfolder trust_remote_code".split(),
    "custom_generate",
}


def _refuse_arguments(model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that Transformers doesn't pass to a callable."""
    for name in ("assistant_model", "prefix_allowed_tokens_fn", "synced_gpus", "negative_prompt_ids"):
        if kwargs.get(name):
            raise ParameterError(f"{name} is not supported in set block decoding: leave it out")
    if kwargs.get("cache_implementation") == "paged":
        raise ParameterError("cache_implementation='paged' is continuous batching, which can't decode in blocks")
    if model.generation_config.stop_strings is not None:
        raise ParameterError(
            "stop_strings of model.generation_config can't be taken over: set them to None there, and pass stop_strings=..."
        )


_OF_TRANSFORMERS = {"attention_mask", "past_key_values", "position_ids", "use_cache", "logits_to_keep"}


def _refuse_model_kwargs(model_kwargs: dict[str, Any], attention_mask: Tensor) -> None:
    """Refuse inputs of the model other than tokens."""
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    if cache is not None and getattr(cache, "_is_user_defined", False):
        raise ParameterError(
            "past_key_values is not supported in set block decoding, which keeps its own cache: leave it out"
        )
    counted = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 0)
    if positions is not None and not bool((positions == counted.to(positions.device)).all()):
        raise ParameterError("position_ids must be those that follow from attention_mask in set block decoding")
    for name in model_kwargs.keys() - _OF_TRANSFORMERS:
        value = model_kwargs[name]
        if value is not None and value != {}:  # a multimodal model's, where there is text alone
            raise ParameterError(f"{name} is not supported in set block decoding: leave it out")


def _sbd_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, *, ends: tuple[int, ...]) -> SBDModel:
    devices.check(model.device)
    refuse_unsupported(model.config)
    plan_attention(model)
    sbd = SBDModel(model, tokenizer or _NoTokenizer(), sbd_config=read_sbd_config(model.config))
    sbd.end_of_text_ids = ends
    return sbd


class _NoTokenizer:
    """Stands for the tokenizer where only token ids are wanted."""

    eos_token_id = None

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        return ""


def _columns(answers: Sequence[Sequence[int]], finished: Container[int], *, pad: int | None) -> Tensor:
    """Return [rows, columns] int64, on the CPU, the new tokens as Transformers streams them: only columns in which every row
    has a token or has ended. `finished`: rows that have ended."""
    unfinished = [len(answer) for row, answer in enumerate(answers) if row not in finished]
    whole = min(unfinished, default=max(map(len, answers)))
    if pad is None and any(len(answer) < whole for answer in answers):
        raise ParameterError("pad_token_id must be set where answers differ in length: pass pad_token_id=...")
    return torch.tensor([[*answer, *[pad] * whole][:whole] for answer in answers], dtype=torch.long)

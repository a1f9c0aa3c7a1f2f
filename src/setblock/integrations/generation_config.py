"""Turn a call of Transformers' `generate` into `DecodingSettings`, or refuse by name what they don't have.

Knows `GenerationConfig`, and what Transformers builds from it. Nothing that would change the output is ignored: a field that is
neither mapped nor harmless is refused, a future release's too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from setblock.decoding.settings.asked import settings_asked
from setblock.decoding.settings.table import DecodingSettings, offered
from setblock.errors import ParameterError

_HAS_FIELDS = """
    max_new_tokens min_new_tokens stop stop_token_ids temperature top_k top_p min_p repetition_penalty logit_bias banned_tokens
""".split()
OFFERED = offered(but_not=("prefill_chunk", *_HAS_FIELDS, "n", "logprobs"))
OPTIONS = (*OFFERED, "stop_strings")
"""What a call may set that Transformers has no field for: settings by their names in `DecodingSettings`, and
`stop_strings`, as in `GenerationConfig`, where a callable can't have them. A `sampler` may be a name. Without a `seed` one is
drawn from PyTorch's global generator, which `set_seed` sets."""


def settings_from(config: GenerationConfig, options: Mapping[str, Any], *, prompt_length: int) -> DecodingSettings:
    """Return the settings that a prepared config asks for, or raise `ParameterError` if it asks for something else, or a value
    is not valid.

    Args:
        config: as `generate` hands it over: `max_length` and `min_length` count the prompt.
        options: some of `OPTIONS`.
        prompt_length: of the batch, padding included.
    """
    _refuse_fields(config)
    max_new_tokens = config.max_length - prompt_length
    given = config.sequence_bias or ()  # a dictionary, or a list of pairs
    pairs = given.items() if isinstance(given, Mapping) else given
    biases = {_single("sequence_bias", sequence): float(bias) for sequence, bias in pairs}
    never = {token_id for token_id, bias in biases.items() if bias == -torch.inf}
    asked = dict(options)
    words = {_single("bad_words_ids", word) for word in config.bad_words_ids or ()}
    words -= {*end_of_text_ids(config)}  # as Transformers does
    base = DecodingSettings(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min(max((config.min_length or 0) - prompt_length, 0), max_new_tokens),
        repetition_penalty=config.repetition_penalty or 1.0,
        logit_bias={token_id: bias for token_id, bias in biases.items() if token_id not in never},
        banned_tokens=sorted({*never, *words, *(_plain(config.suppress_tokens) or ())}),
        stop=asked.pop("stop_strings", None) or (),
    )
    if config.do_sample:
        asked |= {name: getattr(config, name) for name in ("top_k", "top_p", "min_p")}
        asked["temperature"] = 1.0 if config.temperature is None else config.temperature
        if asked.get("seed") is None:
            asked["seed"] = int(torch.randint(2**62, ()))
    return settings_asked(asked, base=base)


def end_of_text_ids(config: GenerationConfig) -> tuple[int, ...]:
    """Return the token ids that end an answer."""
    ids = config.eos_token_id
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(int(each) for each in ids)


def refuse_own(given: Iterable[Any], *, built: Iterable[Any], told: str) -> None:
    """Raise `ParameterError`, in the words of `told`, for a processor or a criterion that is none of those that Transformers
    has `built` from the config: one of the user's may be of the same type and hold another value."""
    left = [_held(each) for each in built]
    for each in given:
        if (held := _held(each)) not in left:
            raise ParameterError(told.format(type(each).__name__))
        left.remove(held)


def _held(each: Any) -> tuple[type, dict[str, Any]]:
    return type(each), {name: _plain(value) for name, value in getattr(each, "__dict__", {}).items()}


_MAPPED = """
    max_length max_new_tokens min_length min_new_tokens do_sample temperature top_k top_p min_p repetition_penalty
    bad_words_ids suppress_tokens sequence_bias num_return_sequences return_dict_in_generate pad_token_id eos_token_id
    stop_strings
""".split()

# What changes no token: where a cache lies, what beams and draft models would do if there were any.
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

"""What a request may ask of block decoding, in vLLM's `extra_args`, and what that means as `DecodingSettings`.

Knows names and ranges, which are those of `setblock generate`. In HTTP requests they stand under `vllm_xargs`.
"""

from collections.abc import Mapping
from typing import Any

from setblock.decoding.asked import settings_asked
from setblock.decoding.settings import DecodingSettings, offered_by
from setblock.errors import ParameterError

# vLLM's own name of a request's block size: its scheduler reads it.
BLOCK_SIZE_OF_VLLM = "diffusion_canvas_length"

_OF_OTHERS = (BLOCK_SIZE_OF_VLLM, "kv_transfer_params", "ec_transfer_params", "session_id")


def settings_of(params: Any) -> DecodingSettings:
    """The settings that vLLM's `SamplingParams` ask for.

    `top_k` and `top_p` are vLLM's own fields. `sampler` is a name; its hyperparameters, such as `gamma`, stand beside it.

    Raises:
        ParameterError: a name is unknown, or a value out of its range.
    """
    extra: Mapping[str, Any] = params.extra_args or {}
    top_k = params.top_k if params.top_k and params.top_k > 0 else 0
    return settings_asked(
        {name: value for name, value in extra.items() if name not in _OF_OTHERS},
        base=DecodingSettings(top_k=top_k, top_p=params.top_p),
        offered=offered_by("vllm"),
    )


def refuse_unsupported(params: Any) -> None:
    """Refuse what vLLM would do for other models, and can't for these.

    Raises:
        ParameterError: says what, and what to do instead.
    """
    if params.logprobs is not None:
        raise ParameterError("logprobs must be left out: block decoding in vLLM has none; `setblock serve` has")
    if params.n != 1:
        raise ParameterError(f"n must be 1, not {params.n}: send one request for each answer, with seeds of their own")
    for name, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        value = getattr(params, name)
        if value != neutral:
            raise ParameterError(f"{name} must be {neutral}, not {value}: block decoding in vLLM has no penalties")

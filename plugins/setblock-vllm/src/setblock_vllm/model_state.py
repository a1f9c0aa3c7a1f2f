"""The model state and the sampler in vLLM's model runner. The state says what a pass feeds each request, how its tokens attend
and which logits are wanted; the sampler applies them and returns the committed tokens.

A request is three attention sequences on one page table: the tokens that it commits, which are causal, its block, which is
not, and the padding behind it, which is. Keys and values are written before attention, so the block sees what is committed in
the same pass. Nothing here makes the host wait for the device.
"""

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setblock.engine.captured import CudaGraph
from setblock_vllm import vllm_api
from setblock_vllm.adapted_layers import Adapter
from setblock_vllm.adapter import read_adapter, sbd_config_of
from setblock_vllm.draft_text import read_draft_text
from setblock_vllm.options import captures_steps
from setblock_vllm.parameters import WIDTH_OF_VLLM, settings_of, width_of
from setblock_vllm.slot_pass import SlotPass
from setblock_vllm.slots import BlockSlots
from setblock_vllm.structure import Form


class SetBlockModelState(vllm_api.DefaultModelState):
    """vLLM's default model state, extended with blocks."""

    supports_prompt_embeds = False
    num_new_sampled_tokens_per_step = 0  # every committed token was in the pass as a "draft"

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        sbd_config = sbd_config_of(self.model_config.hf_config)
        self.width = vllm_config.diffusion_config.canvas_length
        draft_text = read_draft_text(self.model_config)
        self.slots = BlockSlots(
            sbd_config,
            slots=self.max_num_reqs,
            block_size=self.width // width_of(1),
            vocab_size=self.model_config.get_vocab_size(),
            device=device,
            draft_text=draft_text,
            recorder=CudaGraph if captures_steps(vllm_config) else None,
        )
        self.prepared: SlotPass | None = None  # of the pass that runs; None if it feeds no request
        self._slot_of: dict[str, int] = {}
        self.adapter = None
        if (read := read_adapter(self.model_config, sbd_config)) is not None:
            self.adapter = Adapter(
                model, *read, max_num_tokens=self.max_num_tokens, dtype=self.model_config.dtype, device=device
            )
        # The attention sequences of a pass. Captured CUDA graphs read them, so they are always the same memory
        self.parts = 1 if sbd_config.causal_block else 3
        count = self.parts * self.max_num_reqs
        self._starts = torch.zeros(count + 1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(count, dtype=torch.int32, device=device)
        self._causal = torch.ones(count, dtype=torch.int32, device=device)
        self._causal[1 :: self.parts] = 0 if self.parts > 1 else 1
        self._block_tables: list[Tensor] = []

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, of which only forms of answers need to know."""
        return vllm_api.cached_tokenizer_from_config(self.model_config)

    def custom_sampler(self, sampler: Any) -> tuple[Any, None]:
        """Return the sampler in place of vLLM's, and no rejection sampler."""
        return BlockSampler(self), None

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Give a request a slot, before its prompt's first pass."""
        super().add_request(req_index, new_req_data)
        params, length = new_req_data.sampling_params, new_req_data.prompt_len
        block_size = max(1, (params.extra_args or {}).get(WIDTH_OF_VLLM, self.width) // width_of(1))
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
            cached=new_req_data.num_computed_tokens,
        )

    def remove_request(self, req_id: str) -> None:
        """Free a request's slot."""
        super().remove_request(req_id)
        if req_id in self._slot_of:
            self.slots.close(self._slot_of.pop(req_id))

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
        """Write the tokens of blocks into the pass's, and name the outputs whose logits are wanted."""
        if (prepared := self.prepared) is not None:
            first, last = input_batch.query_start_loc[: input_batch.num_reqs].long(), prepared.fed[:, None] - 1
            # Columns past the last token of a request stand for the last
            columns = torch.minimum(self.slots.columns[: prepared.tokens.shape[1]], last)
            tokens, at = prepared.tokens.gather(1, columns), first[:, None] + columns
            if prepared.is_prefill is not None:
                tokens = torch.where(prepared.is_prefill[:, None], input_batch.input_ids[at], tokens)
            input_batch.input_ids[at] = tokens.to(input_batch.input_ids.dtype)
            input_batch.logits_indices = (first[:, None] + prepared.outputs).flatten()
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
        """Prepare attention as the default does, with each request as its attention sequences."""
        is_full = cudagraph_mode == vllm_api.CUDAGraphMode.FULL
        num_reqs = input_batch.num_reqs_after_padding if is_full else input_batch.num_reqs
        num_tokens = input_batch.num_tokens_after_padding if is_full else input_batch.num_tokens
        self.prepared = self._prepare(input_batch)
        if self.adapter is not None:
            self.adapter.mark(input_batch, self.prepared, for_capture=for_capture)
        self._split(input_batch, num_reqs)
        count, upper_bound = self.parts * num_reqs, input_batch.seq_lens_cpu_upper_bound[:num_reqs].numpy()
        # The host doesn't know where blocks begin: it takes all of a request's tokens for those of its first sequence
        ends = np.repeat(input_batch.query_start_loc_np[1 : num_reqs + 1], self.parts)
        return vllm_api.build_attn_metadata(
            attn_groups=attn_groups,
            num_reqs=count,
            num_tokens=num_tokens,
            query_start_loc_gpu=self._starts[: count + 1],
            query_start_loc_cpu=torch.from_numpy(np.concatenate([input_batch.query_start_loc_np[:1], ends])),
            max_query_len=input_batch.max_query_len or int(input_batch.num_scheduled_tokens.max()),
            seq_lens=self._lengths[:count],
            max_seq_len=self.max_model_len if for_capture else int(upper_bound.max()),
            block_tables=self._repeated(block_tables, num_reqs),
            slot_mappings=slot_mappings,
            kv_cache_config=kv_cache_config,
            seq_lens_cpu_upper_bound=torch.from_numpy(np.repeat(upper_bound, self.parts)),
            positions=input_batch.positions,
            is_prefilling=torch.from_numpy(np.repeat(input_batch.is_prefilling_np, self.parts)),
            causal=self._causal[:count],
            for_cudagraph_capture=for_capture,
        )

    def _prepare(self, input_batch: Any) -> SlotPass | None:
        """Return what the pass feeds the requests of a batch; None for a batch that vLLM made up to measure or to capture."""
        if not all(each in self._slot_of for each in input_batch.req_ids):
            return None
        drafts, starts = input_batch.num_draft_tokens_per_req, input_batch.query_start_loc[: input_batch.num_reqs + 1]
        return self.slots.prepare(
            [self._slot_of[each] for each in input_batch.req_ids],
            starts.diff().long(),
            most=max(1, 0 if drafts is None else int(drafts.max())),
            has_prompts=bool(input_batch.is_prefilling_np.any()),
        )

    def _split(self, input_batch: Any, num_reqs: int) -> None:
        """Write the attention sequences of a pass: where each one's tokens begin, and the position past its last key."""
        count, prepared = input_batch.num_reqs, self.prepared
        size = self.parts * count
        first, lengths = input_batch.query_start_loc[:count, None], input_batch.seq_lens[:count, None]
        starts_of, lengths_of = self._starts[:size].view(count, -1), self._lengths[:size].view(count, -1)
        starts_of[:, :1], lengths_of[:, -1:] = first, lengths
        if self.parts > 1 and prepared is not None:
            block, padding = prepared.causal, prepared.causal + prepared.in_block  # how many tokens are before each
            before = torch.stack([block, padding], dim=1)
            starts_of[:, 1:] = first + before
            lengths_of[:, :-1] = prepared.start[:, None] + before
        elif self.parts > 1:  # a made-up batch is all block, as most of a real one is
            starts_of[:, 1], starts_of[:, 2] = first[:, 0], input_batch.query_start_loc[1 : count + 1]
            lengths_of[:, :-1] = lengths
        # What a captured graph runs besides is empty
        self._starts[size : self.parts * num_reqs + 1].fill_(int(input_batch.query_start_loc_np[count]))
        self._lengths[size : self.parts * num_reqs].fill_(0)

    def _repeated(self, block_tables: Any, num_reqs: int) -> list[Tensor]:
        """Return the page tables [R, P] of each group of layers, a row for each attention sequence."""
        if self.parts == 1:
            return list(block_tables)
        if not self._block_tables:
            rows = self.parts * self.max_num_reqs
            self._block_tables = [each.new_zeros((rows, each.shape[1])) for each in block_tables]
        size = self.parts * num_reqs
        for whole, each in zip(self._block_tables, block_tables, strict=True):
            whole[:size].view(num_reqs, self.parts, -1).copy_(each[:num_reqs, None])
        return [each[:size] for each in self._block_tables]


class BlockSampler:
    """The sampler that vLLM calls after each pass. `BlockSlots` applies the core's `update` to the logits."""

    penalties_state = SimpleNamespace(output_bin_counts=None)  # the model runner asks for them; there are none

    def __init__(self, state: SetBlockModelState) -> None:
        self.state = state

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """Do nothing: the model state has added the request."""

    def apply_staged_writes(self) -> None:
        """Do nothing: nothing is staged."""

    @torch.inference_mode()
    def __call__(self, logits: Tensor, input_batch: Any, draft_logits: Tensor | None = None) -> Any:
        """Return the sampler output of a pass. `logits` [R * n, V]: those that the model state has asked for."""
        device, num_reqs = logits.device, input_batch.num_reqs
        logprobs = None
        if (prepared := self.state.prepared) is None:
            sampled = torch.zeros((num_reqs, self.state.width), dtype=torch.int32, device=device)
            num_sampled = num_rejected = torch.zeros(num_reqs, dtype=torch.int32, device=device)
        else:
            self.state.prepared = None
            tokens, committed = self.state.slots.update(prepared, logits)
            logprobs = self._logprobs(prepared, tokens)
            sampled, num_sampled = tokens.int(), committed.int()
            num_rejected = input_batch.cu_num_logits.diff() - num_sampled
        return vllm_api.SamplerOutput(
            sampled_token_ids=sampled,
            logprobs_tensors=logprobs,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )

    def _logprobs(self, prepared: SlotPass, tokens: Tensor) -> Any:
        """Return vLLM's tensors of log-probabilities, with as many rows for each request as `tokens` [R, Q] has, of which vLLM
        reads those of its committed tokens; None if no request wants any."""
        if (found := self.state.slots.logprobs(prepared)) is None:
            return None
        logprob, rank, top_ids, top_logprobs = found
        num_reqs, width = tokens.shape
        return vllm_api.LogprobsTensors(
            torch.cat([tokens[..., None], top_ids], dim=2).flatten(0, 1).int(),
            torch.cat([logprob[..., None], top_logprobs], dim=2).flatten(0, 1),
            rank.flatten().int(),
            [width * row for row in range(num_reqs + 1)],
        )

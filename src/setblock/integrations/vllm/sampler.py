"""Sample in vLLM's model runner: split a pass's logits into rows, and report what was committed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setblock.integrations.vllm import vllm_api
from setblock.integrations.vllm.slots import BlockSlots


class BlockSampler:
    """Sample after each pass, as vLLM calls it. What follows from it is decided by the core, through `BlockSlots`.

    Attributes:
        penalties_state: what the model runner asks every sampler for; there are none.
    """

    penalties_state = SimpleNamespace(output_bin_counts=None)

    def __init__(self, slots: BlockSlots, req_states: Any) -> None:
        self.slots = slots
        self.req_states = req_states

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """Do nothing: the model state has added the request."""

    def apply_staged_writes(self) -> None:
        """Do nothing: nothing is staged."""

    @torch.inference_mode()
    def __call__(self, logits: Tensor, input_batch: Any, draft_logits: Tensor | None = None) -> Any:
        """Return what a pass did.

        Args:
            logits: [N, V], the rows of each request's block one after the other, then one row for each prompt that has ended.
        """
        device, num_reqs = logits.device, input_batch.num_reqs
        # Blocks have their own logits in vLLM's order; those of prompts that have ended were asked for behind them.
        fed = np.diff(input_batch.cu_num_logits_np[: num_reqs + 1]).astype(np.int64)
        blocks = np.flatnonzero(fed) if input_batch.num_draft_tokens else np.empty(0, dtype=np.int64)
        done = finished_prompts(input_batch)
        sampled = torch.zeros((num_reqs, self.slots.width), dtype=torch.int32, device=device)
        num_sampled = torch.zeros(num_reqs, dtype=torch.int32, device=device)
        num_rejected = torch.zeros_like(num_sampled)
        requests = np.concatenate([blocks, done])
        if len(requests):
            slots = input_batch.idx_mapping_np[requests].astype(np.int64).tolist()
            lengths = np.concatenate([fed[blocks], np.ones(len(done), dtype=np.int64)])
            tokens, committed = self.slots.absorb(slots, logits, fed=lengths.tolist())
            at, were_fed = (
                torch.from_numpy(each).to(device) for each in (requests, np.where(fed[requests], lengths, 0))
            )
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
    found: np.ndarray = np.flatnonzero(no_block & (after >= input_batch.prefill_len_np[:count]))
    return found

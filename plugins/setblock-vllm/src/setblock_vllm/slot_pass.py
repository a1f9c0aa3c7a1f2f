"""What vLLM feeds the requests of a pass. Shapes are those of `slots`."""

from dataclasses import dataclass

from torch import Tensor

from setblock.model.protocol.runtime import ModelInput


@dataclass(frozen=True)
class SlotPass:
    """What vLLM feeds R requests in a pass, in vLLM's order. A request is fed `causal` tokens that are committed,
    then `in_block` tokens of its block, then padding."""

    inputs: ModelInput
    fed: Tensor  # [R] int64, tokens of each request
    start: Tensor  # [R] int64, the position of the first
    causal: Tensor  # [R] int64
    in_block: Tensor  # [R] int64
    tokens: Tensor  # [R, Q] int64, except of prompts, which vLLM has; arbitrary past `fed`
    is_prefill: Tensor | None  # [R] bool, requests that are fed a part of their prompt; None if there are none
    outputs: Tensor  # [R, n] int64, of the tokens fed, those whose logits `update` takes
    # [R, m] int64, the one of `outputs` that predicts each place of the update; None if these are as many, in order
    index: Tensor | None = None

"""A probe of what packing needs from an architecture, by trying it on the model itself.

Two prompts of a handful of tokens, each fed in two parts, packed in one row and once more padded to a rectangle. A model whose
attention does not go through Transformers' attention interface, or looks at its cache otherwise, is found out here and not in
its answers.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock.errors import SetBlockError
from setblock.model.cache import SlotCache
from setblock.model.feed import Feed
from setblock.model.packed_runner import PackedRunner
from setblock.model.padded_runner import PaddedRunner

_LENGTHS = (5, 3)
_FIRST_PART = (2, 1)
_TOLERANCE = 0.2  # relative; rounding stays well below it in any dtype, a wrong key or mask well above


@torch.inference_mode()
def probe_packing(model: PreTrainedModel) -> None:
    """Check that packed requests get the logits that they get padded.

    Raises:
        SetBlockError: they do not; the message says why.
    """
    name, layers = model.config.model_type, model.config.get_text_config().num_hidden_layers
    padded = PaddedRunner(model, SlotCache(layers=layers, batch=len(_LENGTHS), capacity=max(_LENGTHS) + 1))
    packed = PackedRunner(model, pages=4, page_tokens=4)
    packed.place([[3, 1], [2]])
    expected = _logits(model, padded)
    try:
        found = _logits(model, packed)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SetBlockError(
            f"{name} can't be run by the engine: its attention takes no packed requests ({reason})"
        ) from error
    if float((found - expected).norm() / expected.norm().clamp(min=1e-6)) > _TOLERANCE:
        raise SetBlockError(f"{name} can't be run by the engine: packed requests get other logits than padded ones")


def _logits(model: PreTrainedModel, runner: PackedRunner | PaddedRunner) -> Tensor:
    """[2, V] float32, the logits after each prompt."""
    runner.logits(_causal_feed(model, (0, 0), _FIRST_PART))
    return runner.logits(_causal_feed(model, _FIRST_PART, _LENGTHS))[:, 0]


def _causal_feed(model: PreTrainedModel, starts: tuple[int, int], ends: tuple[int, int]) -> Feed:
    """A part of each prompt; the output of its last token is wanted."""
    start, end = (torch.tensor(each, device=model.device)[:, None] for each in (starts, ends))
    positions = start + torch.arange(max(map(int.__sub__, ends, starts)), device=model.device)  # [2, Q]
    is_real = positions < end
    vocab_size = model.get_input_embeddings().weight.shape[0]
    return Feed(
        rows=torch.arange(len(starts), device=model.device),
        batch=len(starts),
        tokens=(positions * 7 + 11) % vocab_size,
        positions=positions.masked_fill(~is_real, 0),
        ends=end[:, 0],
        is_real=is_real,
        in_block=torch.zeros_like(is_real),
        limits=(positions + 1).masked_fill(~is_real, 1),
        visible=max(ends),
        outputs=end - 1 - start,
        wanted=torch.ones_like(end, dtype=torch.bool),
        targets=end,
        is_fixed=False,
    )

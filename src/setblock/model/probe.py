"""A probe of what block decoding needs from an architecture, by trying it on the model itself.

Three passes over a handful of tokens. A list of supported architectures would be out of date with every release of
Transformers; a model that silently ignores a mask or a position would decode to nonsense.
"""

from typing import NoReturn

import torch
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.forward import logits_at
from setblock.model.sbd_model import SBDModel

_LENGTH, _BLOCK = 6, 3  # tokens of the probe, and how many of them are its block
_TOLERANCE = 0.2  # relative; rounding stays well below it in any dtype, an ignored mask or position well above


@torch.inference_mode()
def probe(sbd: SBDModel) -> None:
    """Check that the model honours the masks, positions and cache it is given.

    Raises:
        SetBlockError: it does not; the message says which.
    """
    vocabulary = sbd.model.get_input_embeddings().weight.shape[0]
    tokens = (torch.arange(_LENGTH, device=sbd.device) * 7 + 11)[None] % vocabulary  # [1, T]
    causal = torch.arange(1, _LENGTH + 1, device=sbd.device)[None]
    in_block = causal > _LENGTH - _BLOCK

    plain = sbd.model(input_ids=tokens, use_cache=False).logits[0].float()
    cache = SlotCache(layers=sbd.model.config.get_text_config().num_hidden_layers, batch=1, capacity=_LENGTH)
    try:
        # Fed in two parts through the cache, the second under a mask of ours: the same logits as in one plain pass.
        _pass(sbd, tokens, causal, cache, start=0, end=_LENGTH - _BLOCK)
        cached = _pass(sbd, tokens, causal, cache, start=_LENGTH - _BLOCK, end=_LENGTH)
    except (
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as error:  # of the model, for arguments it doesn't take
        _refuse(sbd, f"it takes no 4D mask, position ids or preallocated cache ({str(error).splitlines()[0]})", error)
    if _relative_difference(cached, plain[-_BLOCK:]) > _TOLERANCE:
        _refuse(sbd, "it gives other logits with a preallocated cache and a 4D mask than without")

    # As a block, the same tokens see each other in both directions: the first one's logits must change, unless no layer
    # ever looks to the right.
    block = _pass(sbd, tokens, torch.where(in_block, _LENGTH, causal), cache, start=_LENGTH - _BLOCK, end=_LENGTH)
    if torch.equal(block[0], cached[0]):
        _refuse(sbd, "it ignores a mask that lets a token attend to later ones")


def _pass(sbd: SBDModel, tokens: Tensor, limits: Tensor, cache: SlotCache, *, start: int, end: int) -> Tensor:
    """[end - start, V] float32 logits of one part of the tokens."""
    positions = torch.arange(start, end, device=sbd.device)[None]
    cache.write_to(rows=None, slots=positions, visible=end)
    mask = attention_mask(
        sbd.model.config.get_text_config(),
        lambda window: decode_mask(position_ids=positions, limits=limits[:, start:end], window=window),
        batch=1,
        queries=end - start,
        keys=end,
        device=sbd.device,
        dtype=sbd.model.dtype,
    )
    return logits_at(
        sbd.model,
        torch.arange(end - start, device=sbd.device),
        input_ids=tokens[:, start:end],
        position_ids=positions,
        attention_mask=mask,
        cache=cache,
    ).float()


def _relative_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-6))


def _refuse(sbd: SBDModel, reason: str, cause: Exception | None = None) -> NoReturn:
    raise SetBlockError(f"{sbd.model.config.model_type} can't be decoded in blocks: {reason}") from cause

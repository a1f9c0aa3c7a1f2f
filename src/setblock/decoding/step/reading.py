"""Which kernel reads the logits of a model's passes, if any does.

In exact mode the text is plain decoding's because drafts are checked by the function that plain decoding chooses tokens by. A
kernel and PyTorch's operations round differently, which changes a draw now and then. So a model has one of them for all its
passes: those that are captured and those beside them, of all methods.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from setblock.decoding.step.certainty import certainty_of
from setblock.decoding.step.choice import Draws, Kernel, choose_tokens
from setblock.decoding.step.logits import Reading, most_likely
from setblock.errors import warn
from setblock.model.protocol.runtime import LanguageModel


def kernel_for(model: LanguageModel) -> Kernel | None:
    """Return the kernel that reads the logits in all passes of a model, or None for PyTorch's operations. A model has one
    after `SBDModel.capture`, if Triton is installed and the kernel gives on this device what PyTorch gives. If it does
    not, one line says so."""
    return _kernel_on(model.device) if model.static_kind == "captured" else None


@cache
def _kernel_on(device: torch.device) -> Kernel | None:
    if find_spec("triton") is None:
        return None
    try:
        from setblock.decoding.step.reading_kernel import read_by_kernel  # needs Triton

        reason = fault_of(read_by_kernel, device)
    except Exception as error:  # of Triton, its compiler or the driver: PyTorch's operations need none of them
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    else:
        if reason is None:
            return read_by_kernel
    warn(f"tokens are drawn by PyTorch's operations, and not by one kernel: {reason}")
    return None


def read_by_operations(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, *, is_greedy: bool = False
) -> Reading:
    """Read logits [B, n, V] by PyTorch's operations: what a `Kernel` is compared with. `is_greedy`: as in `Draws`."""
    best = most_likely(logits)
    certainty = certainty_of(logits, best.logits, best.logits.isfinite(), in_tiles=False)
    draws = Draws(temperatures, None, None, None, seeds, is_greedy=is_greedy)
    return Reading(best, certainty, choose_tokens(logits, draws, positions=positions, best=best.token_ids))


@torch.inference_mode()
def fault_of(kernel: Kernel, device: torch.device) -> str | None:
    """Try a kernel on some logits. Return what differs from PyTorch's operations, or None."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 8, 10_007, generator=generator)
    logits[0, 0], logits[0, 1, 3:], logits[0, 2, 5] = 1.0, -torch.inf, torch.nan
    logits = logits.to(device)
    temperatures, seeds = (torch.tensor(each, device=device) for each in ([0.7, 0.0, 1.0], [3, 4, -5]))
    positions = torch.arange(24, device=device).view(3, 8)
    found, expected = (read(logits, temperatures, seeds, positions) for read in (kernel, read_by_operations))
    assert found.certainty is not None
    assert expected.certainty is not None
    assert found.chosen is not None
    assert expected.chosen is not None
    is_finite = expected.best.logits.isfinite()
    if not torch.equal(found.best.logits.isfinite(), is_finite):
        return "other logits are finite"
    if not torch.equal(found.best.token_ids[is_finite], expected.best.token_ids[is_finite]):
        return "other tokens are the most likely ones"
    if not torch.equal(found.chosen[is_finite], expected.chosen[is_finite]):
        return "other tokens are drawn"
    pairs = zip(found.certainty, expected.certainty, strict=True)
    if not all(torch.allclose(ours[is_finite], theirs[is_finite], rtol=1e-4, atol=1e-4) for ours, theirs in pairs):
        return "the entropies differ"
    return None

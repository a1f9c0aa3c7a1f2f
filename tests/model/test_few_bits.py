"""A shipped adapter's file: what rounding to eight bits may change, and what it may not."""

import torch

from setblock.model.eight_bits import from_eight_bits, to_eight_bits


def test_matrices_are_rounded_by_half_a_step_at_most_and_the_rest_is_kept() -> None:
    torch.manual_seed(0)
    state = {
        "a.weight": torch.randn(5, 40) * torch.logspace(-3, 2, 5)[:, None],
        "b": torch.randn(7),
        "c": torch.zeros(3, 4),
    }
    packed = to_eight_bits(state)
    assert packed["a.weight"].dtype == torch.int8
    back = from_eight_bits(packed)
    assert back.keys() == state.keys()
    step = state["a.weight"].abs().amax(dim=1, keepdim=True) / 127
    assert ((back["a.weight"] - state["a.weight"]).abs() <= step * 0.5001).all()
    assert torch.equal(back["b"], state["b"])
    assert torch.equal(back["c"], state["c"])

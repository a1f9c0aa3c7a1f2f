"""Matrices in few bits: what rounding may change, and what it may not."""

import pytest
import torch

from deltas.packing import rounded, to_few_bits
from setblock.model.loading.delta import from_few_bits


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(5, 43) * torch.logspace(-3, 2, 5)[:, None],
        "b": torch.randn(7),
        "c": torch.zeros(3, 4),
    }


def test_eight_bits_round_by_half_a_step_and_the_rest_is_kept(state: dict[str, torch.Tensor]) -> None:
    back = from_few_bits(to_few_bits(state, bits=8))
    assert back.keys() == state.keys()
    step = 2 * 5.0 * state["a.weight"].square().mean(dim=1, keepdim=True).sqrt() / 256
    assert ((back["a.weight"] - state["a.weight"]).abs() <= step * 0.5001).all()
    assert torch.equal(back["b"], state["b"])
    assert back["c"].abs().max() < 1e-30


@pytest.mark.parametrize(("bits", "most"), [(1, 0.38), (2, 0.13), (3, 0.045), (4, 0.015)])
def test_each_bit_leaves_the_error_of_a_uniform_quantiser(bits: int, most: float) -> None:
    """Of normal numbers the best uniform quantiser leaves 0.363, 0.119, 0.037 and 0.012 of the squares."""
    torch.manual_seed(1)
    values = torch.randn(4, 4096) * torch.tensor([1e-4, 1.0, 3.0, 1e5])[:, None]
    packed = to_few_bits({"w": values}, bits=bits)
    assert packed["w.planes"].numel() == values.numel() * bits // 8
    error = (from_few_bits(packed)["w"] - values).square().sum(dim=1) / values.square().sum(dim=1)
    assert (error < most).all()


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_training_sees_the_numbers_that_are_stored(bits: int) -> None:
    torch.manual_seed(2)
    values, steps = torch.randn(4, 40, requires_grad=True), torch.tensor([0.1, 0.3, 1.0, 9.0], requires_grad=True)
    seen = rounded(values, steps, bits)
    back = from_few_bits(to_few_bits({"w": values.detach()}, bits=bits, steps={"w": steps.detach()}))
    torch.testing.assert_close(seen, back["w"])
    seen.sum().backward()
    inside = (values.detach() / steps.detach()[:, None]).abs() < 2 ** (bits - 1)
    torch.testing.assert_close(values.grad, inside.float())


def test_a_number_out_of_range_moves_its_step() -> None:
    """Of 3 bits and steps of 1, the middles of the outermost are -3.5 and 3.5."""
    steps = torch.ones(2, requires_grad=True)
    rounded(torch.tensor([[40.0, 50.0], [-40.0, 0.5]]), steps, 3).sum().backward()
    torch.testing.assert_close(steps.grad, torch.tensor([7.0, -3.5]))

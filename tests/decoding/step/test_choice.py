"""The choice of tokens: argmax, or a draw that is exact and depends on nothing but its keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from setblock.decoding.step.choice import Draws, choose_tokens, keyed_uniform

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def splitmix64(keys: tuple[int, ...]) -> int:
    """Steele, Lea and Flood (2014), in Python's unbounded integers, over several keys."""
    z = 0
    for key in keys:
        z = (z + key + GOLDEN) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z


def int64(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@given(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3))
def test_keyed_uniform_is_splitmix64(keys: tuple[int, int, int]) -> None:
    value = float(keyed_uniform(*(torch.tensor(key) for key in keys)))
    assert value == pytest.approx(splitmix64(keys) / 2**64, abs=1e-6)
    assert 0 < value < 1


def test_splitmix64_of_the_reference_implementation() -> None:
    """The first output for seed 1234567, as published with xoshiro (prng.di.unimi.it)."""
    assert splitmix64((1234567,)) == 6457827717110365317


def _unmix(z: int) -> int:
    """The inverse of one round of SplitMix64's mixing."""

    def unshift(z: int, bits: int) -> int:
        x = z
        for _ in range(64 // bits + 1):
            x = z ^ (x >> bits)
        return x

    z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    z = unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return unshift(z, 30)


@pytest.mark.parametrize("bits", [0, 1, 2**39, MASK, MASK - 1, MASK - 2**39, MASK ^ 2**40])
def test_the_ends_are_never_reached(bits: int) -> None:
    """Keys made so that the generator's state is all zeros, all ones, or next to it."""
    key = int64((_unmix(bits) - GOLDEN) & MASK)
    assert splitmix64((key & MASK,)) == bits
    assert 0 < float(keyed_uniform(torch.tensor(key))) < 1


def test_no_noise_outweighs_a_banned_token() -> None:
    """Whatever the generator's state, a token of probability 0 is never drawn."""
    seed = int64((_unmix((_unmix((_unmix(MASK) - GOLDEN - 1) & MASK) - GOLDEN) & MASK) - GOLDEN) & MASK)
    logits = torch.tensor([[[0.0, -math.inf]]])  # token 1 at position 0 gets the largest noise there is
    assert splitmix64((seed & MASK, 0, 1)) == MASK
    assert chosen(logits, seed=seed, temperature=1.0).tolist() == [[0]]


def drawn_by(*, temperature: Tensor, seeds: Tensor) -> Draws:
    return Draws(temperature, None, None, None, seeds, is_greedy=False)


def chosen(logits: Tensor, *, seed: int, temperature: float, first_position: int = 0) -> Tensor:
    return choose_tokens(
        logits,
        drawn_by(temperature=torch.tensor([temperature]), seeds=torch.tensor([seed])),
        positions=torch.arange(first_position, first_position + logits.shape[1])[None],
    )


def test_keyed_uniform_is_uniform_and_independent_along_every_key() -> None:
    keys = torch.arange(64)
    u = keyed_uniform(keys[:, None, None], keys[None, :, None], keys[None, None, :]).double()
    n = u.numel()
    assert float(u.mean()) == pytest.approx(1 / 2, abs=4 * math.sqrt(1 / 12 / n))
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.02)
    counts = torch.histc(u, bins=64, min=0, max=1)
    assert float(((counts - n / 64) ** 2 / (n / 64)).sum()) < 63 + 4 * math.sqrt(2 * 63)
    centred = u - u.mean()
    for dim in range(3):
        a, b = centred.narrow(dim, 0, 63), centred.narrow(dim, 1, 63)
        assert abs(float((a * b).mean() * 12)) < 4 / math.sqrt(a.numel())
    assert len(u.unique()) > 0.98 * n


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    """Chi-square over many seeds, at two positions."""
    logits, draws = torch.tensor([1.0, 0.0, -1.0, 2.0, -math.inf, 0.5, -3.0]), 20_000
    tokens = choose_tokens(
        logits.expand(draws, 2, -1),
        drawn_by(temperature=torch.full((draws,), temperature), seeds=torch.arange(draws)),
        positions=torch.tensor([[3, 4]]).expand(draws, 2),
    )
    expected = (logits / temperature).softmax(dim=0).double() * draws
    for place in range(2):
        counts = torch.bincount(tokens[:, place], minlength=7)
        assert counts[4] == 0
        drawn = expected > 0
        chi_square = float(((counts - expected) ** 2)[drawn].div(expected[drawn]).sum())
        assert chi_square < 5 + 4 * math.sqrt(2 * 5)
    # The two places are independent: together they follow the product.
    pairs = torch.bincount(tokens[:, 0] * 7 + tokens[:, 1], minlength=49)
    joint = (expected[:, None] * expected / draws).flatten()
    common = joint > 5
    chi_square = float(((pairs - joint) ** 2)[common].div(joint[common]).sum())
    degrees = int(common.sum())
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


def test_draws_among_a_large_vocabulary_are_even() -> None:
    """Ten thousand draws from a flat distribution over 50,000 tokens: hardly one is drawn three times."""
    vocabulary, draws = 50_000, 500
    tokens = torch.cat(
        [chosen(torch.zeros(1, 20, vocabulary), seed=seed, temperature=1.0)[0] for seed in range(draws // 20)]
    )
    assert float(tokens.double().mean()) == pytest.approx(vocabulary / 2, rel=4 / math.sqrt(12 * draws) * 2)
    assert len(tokens.unique()) > draws - 12


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_temperature_0_is_argmax_whatever_the_seed(seed: int, position: int) -> None:
    logits = torch.tensor([[[0.5, 3.0, 3.0, 1.0], [2.0, -1.0, 0.0, 1.9999]]])
    assert chosen(logits, seed=seed, temperature=0.0, first_position=position).tolist() == [[1, 0]]


def test_a_draw_depends_on_seed_position_and_logits_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 50, generator=generator)
    temperature, seeds = torch.tensor([1.0, 0.0, 0.7, 1.0]), torch.tensor([1, 2, 3, 1])
    positions = torch.tensor([0, 7, 2, 40])[:, None] + torch.arange(6)
    together = choose_tokens(logits, drawn_by(temperature=temperature, seeds=seeds), positions=positions)
    for row in range(4):
        for column in range(6):
            alone = choose_tokens(
                logits[row : row + 1, column : column + 1],
                drawn_by(temperature=temperature[row : row + 1], seeds=seeds[row : row + 1]),
                positions=positions[row : row + 1, column : column + 1],
            )
            assert int(alone) == int(together[row, column])


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    logits = torch.tensor([[[1.0, 1.1, 0.9]]])
    assert {int(chosen(logits, seed=s, temperature=1e-3)) for s in range(50)} == {1}

"""Tests of the certainty of long vocabularies, which is read a few positions at a time."""

import torch

from setblock.decoding.step.certainty import certainty_of


def test_scattered_candidates_have_the_certainty_of_their_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 31, 20_000, generator=generator)
    logits[:, :, :7] = -torch.inf  # banned tokens
    candidates = torch.rand(3, 31, generator=generator) < 0.6
    greatest = logits.amax(dim=-1)
    expected = torch.distributions.Categorical(logits=logits[candidates].double())

    found = certainty_of(logits, greatest, candidates)
    assert torch.allclose(found.entropy[candidates].double(), expected.entropy(), atol=1e-4)
    assert torch.allclose(found.confidence[candidates].double(), expected.probs.amax(dim=-1), atol=1e-6)
    assert (found.entropy[~candidates] == 0).all()
    assert (found.confidence[~candidates] == 1).all()

    for row in range(3):  # company changes no bit
        alone = certainty_of(logits[row : row + 1], greatest[row : row + 1], candidates[row : row + 1])
        assert torch.equal(alone.entropy[0], found.entropy[row])
        assert torch.equal(alone.confidence[0], found.confidence[row])

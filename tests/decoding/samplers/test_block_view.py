"""What a sampler reads of a long vocabulary, against the same in double precision and in one piece."""

import pytest
import torch

from setblock.decoding.samplers import BlockView

VOCABULARY = 40_000  # more than one tile of it


def logits_of(rows: int, *, seed: int = 0) -> torch.Tensor:
    """[rows, 6, V], flat at one position and sharp at another; some tokens are banned."""
    logits = 3 * torch.randn((rows, 6, VOCABULARY), generator=torch.Generator().manual_seed(seed))
    logits[:, 2] *= 1e-3
    logits[:, 4] *= 30
    logits[..., [5, 16_384, VOCABULARY - 1]] = -torch.inf
    return logits


CANDIDATES = torch.tensor(
    [[True] * 6, [False, True, False, True, True, False], [False] * 6, [False, False, True, False, False, False]]
)


def test_certainty_is_that_of_the_distribution() -> None:
    logits = logits_of(4)
    block = BlockView.of(logits, CANDIDATES, ~CANDIDATES)
    exact = logits.double().softmax(dim=-1)
    entropy = torch.special.entr(exact).sum(dim=-1)[CANDIDATES]
    assert block.entropy[CANDIDATES].tolist() == pytest.approx(entropy.tolist(), abs=1e-4)
    assert block.confidence[CANDIDATES].tolist() == pytest.approx(exact.amax(dim=-1)[CANDIDATES].tolist(), rel=1e-5)


def test_certainty_does_not_depend_on_what_shares_the_batch() -> None:
    logits = logits_of(4)
    together = BlockView.of(logits, CANDIDATES, ~CANDIDATES).entropy
    for row in range(4):
        one = slice(row, row + 1)
        alone = BlockView.of(logits[one], CANDIDATES[one], ~CANDIDATES[one]).entropy
        assert torch.equal(alone, together[one])

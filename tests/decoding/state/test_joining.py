import pytest
import torch

from setblock.decoding.state.joining import fitted, stacked


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 0), (0, 3, 1)])
@pytest.mark.parametrize("width", [0, 2, 3, 5])
def test_fitted_keeps_what_fits_and_fills_the_rest(shape, width):
    part = torch.randn(shape)
    found = fitted(part, width)
    assert found.shape == (shape[0], width, *shape[2:])  # an empty last dimension, too, which old PyTorch can't pad
    kept = min(width, 3)
    assert torch.equal(found[:, :kept], part[:, :kept])
    assert (found[:, kept:] == 0).all()


def test_stacked_fills_the_narrower():
    parts = [torch.ones(1, 2, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)]
    assert stacked(parts).tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]

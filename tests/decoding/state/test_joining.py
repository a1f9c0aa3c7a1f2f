import pytest
import torch

from setblock.decoding.state.joining import joined_rows


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 0), (0, 3, 1)])
@pytest.mark.parametrize("width", [0, 2, 3, 5])
def test_what_fits_is_kept_and_the_rest_filled(shape, width):
    part = torch.randn(shape)
    found = joined_rows([part], None, width)
    assert found.shape == (shape[0], width, *shape[2:])  # an empty last dimension, too, which old PyTorch can't pad
    kept = min(width, 3)
    assert torch.equal(found[:, :kept], part[:, :kept])
    assert (found[:, kept:] == 0).all()


def test_the_narrower_is_filled():
    parts = [torch.ones(1, 2, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)]
    assert joined_rows(parts, None, 3).tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert joined_rows(parts, torch.tensor([2, 0]), 3, 9).tolist() == [[1, 1, 1], [1, 1, 0]]

"""Fine-tuned weights as a delta: it is the tuned model, about, in a small part of its bytes."""

import torch

from deltas.packing import Form, packed_delta
from setblock.model.loading.delta import with_delta


def test_a_change_of_low_rank_comes_back_and_takes_few_bytes() -> None:
    torch.manual_seed(0)
    base = {
        "layer.weight": torch.randn(96, 64).bfloat16(),
        "embed.weight": torch.randn(200, 64),
        "norm": torch.ones(64),
    }
    change = torch.randn(96, 4) @ torch.randn(4, 64)
    tuned = {
        "layer.weight": base["layer.weight"].float() + change,
        "embed.weight": base["embed.weight"].clone(),
        "norm": torch.rand(64),
    }
    tuned["embed.weight"][3] = 7.0
    packed = packed_delta(
        base, tuned, form=Form(4, bits=8), forms={"embed": Form(1, bits=8)}, rows={"embed.weight": [3]}
    )
    made = with_delta(base, packed)
    assert (made["layer.weight"] - tuned["layer.weight"]).norm() < 0.02 * change.norm()
    assert torch.equal(made["embed.weight"][3], torch.full((64,), 7.0))
    torch.testing.assert_close(made["embed.weight"], tuned["embed.weight"])
    assert torch.equal(made["norm"], tuned["norm"])
    assert packed["layer.weight.up.planes"].nbytes + packed["layer.weight.down.planes"].nbytes == 4 * (96 + 64)


def test_more_of_the_rank_at_fewer_bits_is_nearer() -> None:
    """Why a shipped delta has three bits: in the same bytes, more components say more than finer numbers."""
    torch.manual_seed(0)
    base = {"w": torch.zeros(128, 128)}
    tuned = {"w": torch.randn(128, 128) @ torch.diag(0.97 ** torch.arange(128.0)) @ torch.randn(128, 128)}

    def error(rank: int, bits: int) -> float:
        packed = packed_delta(base, tuned, form=Form(rank, bits), forms={}, rows={})
        return float((with_delta(base, packed)["w"] - tuned["w"]).norm() / tuned["w"].norm())

    assert error(64, 3) < error(24, 8)
    assert error(64, 8) < error(64, 3)


def test_what_the_delta_does_not_name_is_the_base() -> None:
    base = {"w": torch.randn(4, 4)}
    assert torch.equal(with_delta(base, {})["w"], base["w"])

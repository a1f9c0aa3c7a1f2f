import pytest

from setblock.roofline.prediction import predicted_speedup

# Table 3: batch -> (time(16), time(32)) over time(1), as printed, to three decimals.
SLOWDOWNS = {1: (1.004, 1.008), 4: (1.015, 1.030), 8: (1.029, 1.060)}
# Table 4: (batch, NFE speed-up) -> wall-clock speed-up at k = 16.
SPEEDUPS = {
    (1, 2): 1.992, (1, 4): 3.982, (1, 8): 7.955,
    (4, 2): 1.967, (4, 4): 3.927, (4, 8): 7.824,
    (8, 2): 1.936, (8, 4): 3.857, (8, 8): 7.657,
}  # fmt: skip


@pytest.mark.parametrize(("batch", "nfe_speedup"), SPEEDUPS)
def test_table_4_follows_from_table_3(batch, nfe_speedup):
    block, fused = SLOWDOWNS[batch]

    speedup = predicted_speedup(16 / nfe_speedup, block_size=16, one_token=1.0, block=block, fused=fused)

    # Table 3's times are rounded to 0.0005 of about 1, and so is what follows from them; table 4 is rounded itself.
    printed = SPEEDUPS[batch, nfe_speedup]
    assert speedup == pytest.approx(printed, abs=0.0005 * printed + 0.0005)


def test_passes_that_all_cost_the_same_give_the_nfe_speedup():
    assert predicted_speedup(4, block_size=16, one_token=2.0, block=2.0, fused=2.0) == 4


def test_one_token_a_pass_gains_nothing():
    assert predicted_speedup(16, block_size=16, one_token=1.0, block=1.0, fused=1.0) == 1


@pytest.mark.parametrize("passes", [0.5, 16.5, float("nan")])
def test_refuses_impossible_passes(passes):
    with pytest.raises(ValueError, match=r"passes_per_block must be in 1\.\.16"):
        predicted_speedup(passes, block_size=16, one_token=1.0, block=1.0, fused=1.0)


def test_refuses_times_that_are_not_positive():
    with pytest.raises(ValueError, match="times must be positive"):
        predicted_speedup(4, block_size=16, one_token=1.0, block=0.0, fused=1.0)

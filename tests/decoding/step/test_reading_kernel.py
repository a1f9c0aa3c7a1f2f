"""The Triton kernel that reads logits once: interpreted on a CPU, and compiled for a GPU that need not be there."""

from pathlib import Path

import pytest

from triton_kernels import check_interpreted, compiled_for_an_h100, needs_triton

pytestmark = needs_triton


def test_the_kernel_interpreted() -> None:
    check_interpreted(Path(__file__).with_name("interpreted_reading.py"))


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_the_kernel_compiles_for_an_h100() -> None:
    from setblock.decoding.step import reading_kernel

    arguments = {"logits": "*fp32", "temperatures": "*fp32", "seeds": "*i64", "positions": "*i64"}
    arguments |= {"numbers": "*fp32", "token_ids": "*i64"}
    arguments |= dict.fromkeys(("stride_b", "stride_n", "count", "vocab_size"), "i32")
    options = {"num_warps": 8, "enable_fp_fusion": False}
    read = compiled_for_an_h100(reading_kernel._read_tile, arguments, options=options, TILE=reading_kernel._TILE)
    assert read.asm["cubin"]
    assert "lg2.approx" not in read.asm["ptx"]  # too coarse: small exponentials decide which token is drawn

"""The Triton kernel: interpreted on a CPU, and compiled for a GPU that need not be there."""

from pathlib import Path
from typing import Any

import pytest

from triton_kernels import check_interpreted, compiled_for_an_h100, needs_triton

pytestmark = needs_triton


def test_the_kernel_interpreted() -> None:
    check_interpreted(Path(__file__).with_name("interpreted_kernel.py"))


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(("dtype", "size", "rows"), [("bf16", 128, 128), ("fp32", 64, 16)], ids=["bf16", "fp32"])
def test_the_kernel_compiles_for_an_h100(dtype: str, size: int, rows: int) -> None:
    from setblock.model.attention import paged_kernel

    states, sums = f"*{dtype}", {"sums": "*fp32", "tops": "*fp32"}
    sizes = {"GROUPS": 8, "OF_GROUP": 4, "QUERIES": 32, "SIZE": size, "SPLITS": 4, "WIDTH": size}

    def compiled(kernel: Any, arguments: dict[str, str], **constants: Any) -> Any:
        return compiled_for_an_h100(kernel, arguments, **sizes, **constants)

    arguments = dict.fromkeys(("query", "keys", "values"), states)
    arguments |= {"table": "*i32", "bounds": "*i32", **sums, "scale": "fp32", "softcap": "fp32"}
    arguments |= dict.fromkeys(("stride_r", "stride_h", "stride_q", "most"), "i32")
    attend = compiled(paged_kernel._attend, arguments, PAGE=16, ROWS=rows, KEYS=64, IS_CAPPED=True)
    assert attend.asm["cubin"]
    assert attend.metadata.shared <= 227 * 1024  # of a multiprocessor
    arguments = {**sums, "sinks": states, "out": states}
    assert compiled(paged_kernel._add_up, arguments, HAS_SINKS=True).asm["cubin"]

"""Triton's kernels without a GPU: interpreted on a CPU, and compiled for a GPU that need not be there."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: PyTorch for CPUs does not bring it"
)


def check_interpreted(cases: Path) -> None:
    """Run the tests of a file in a process where Triton's functions are interpreted."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(cases), "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr


def compiled_for_an_h100(
    kernel: Any, arguments: dict[str, str], *, options: dict[str, Any] | None = None, **constants: Any
) -> Any:
    """Return a kernel compiled with the types of its arguments, and with Triton's options."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = arguments | dict.fromkeys(constants, "constexpr")
    return compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)

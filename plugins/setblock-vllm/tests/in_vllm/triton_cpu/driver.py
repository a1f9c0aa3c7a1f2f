"""The driver part: a target and a device, and no way to launch anything."""

from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class CPUDriver(DriverBase):
    """Says that there is a CPU."""

    def __init__(self) -> None:
        pass

    @staticmethod
    def is_active() -> bool:
        """Always."""
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Never called: nothing is compiled."""
        raise NotImplementedError("kernels run in Triton's interpreter only: set TRITON_INTERPRET=1")

    def get_current_target(self) -> GPUTarget:
        """The CPU."""
        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        """Never called: nothing is tuned."""
        raise NotImplementedError("nothing is tuned in Triton's interpreter")

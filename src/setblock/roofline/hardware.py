"""The limits of hardware from data sheets: bytes per second from memory, operations per second by type.

No program reaches these figures.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from setblock.errors import ParameterError

GB, TB, TFLOPS = 1e9, 1e12, 1e12


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The limits of one accelerator, or of one machine."""

    name: str  # its name for `--hardware`
    bandwidth: float  # of its memory, in bytes per second
    # Dense operations per second, without structured sparsity, by the bits of a number; what has no 8-bit units computes in 16
    peaks: Mapping[int, float]
    memory: float  # its size in bytes

    def peak(self, bits: int) -> float:
        """Return the operations per second in numbers of `bits` bits, or of the next wider type that the hardware supports."""
        return next(self.peaks[wider] for wider in sorted(self.peaks) if wider >= bits)

    def with_figures(self, *, bandwidth: float | None, peak: float | None) -> "Hardware":
        """Return the same hardware with other figures: bandwidth in bytes per second, peak in operations per second at
        any type."""
        for name, value in (("bandwidth", bandwidth), ("peak", peak)):
            if value is not None and not value > 0:
                raise ParameterError(f"{name} must be positive, not {value:g}")
        peaks = dict.fromkeys(self.peaks, peak) if peak else self.peaks
        return replace(self, name=f"{self.name} (own figures)", bandwidth=bandwidth or self.bandwidth, peaks=peaks)


def _row(name: str, *, bandwidth: float, memory: float, tflops: dict[int, float]) -> Hardware:
    """Return a row of the table: bandwidth in bytes/s, memory in GB, peaks in TFLOPS."""
    peaks = {bits: peak * TFLOPS for bits, peak in tflops.items()}
    return Hardware(name=name, bandwidth=bandwidth, peaks=peaks, memory=memory * GB)


# Data sheets print the tensor cores' figures with sparsity; these are the dense halves.
_ROWS = (
    # NVIDIA H100 Tensor Core GPU data sheet, SXM: FP32 67, BF16 1,979 and FP8 3,958 with sparsity, 3.35 TB/s.
    _row("h100", bandwidth=3.35 * TB, memory=80, tflops={32: 67, 16: 989.5, 8: 1979}),
    # Set Block Decoding, figure 11: 3.35 TiB/s, a tenth more than the data sheet's 3.35 TB/s.
    _row("paper-h100", bandwidth=3.35 * 1024**4, memory=80, tflops={32: 67, 16: 989, 8: 1978}),
    # NVIDIA H200 Tensor Core GPU data sheet, SXM: the compute of an H100, 4.8 TB/s.
    _row("h200", bandwidth=4.8 * TB, memory=141, tflops={32: 67, 16: 989.5, 8: 1979}),
    # NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM: BF16 312, INT8 624 (it has no FP8), 2,039 GB/s.
    _row("a100", bandwidth=2.039 * TB, memory=80, tflops={32: 19.5, 16: 312, 8: 624}),
    # NVIDIA DGX B200 data sheet, an eighth of the machine: FP8 72 PFLOPS with sparsity, 64 TB/s, 1,440 GB. BF16 is half FP8;
    # FP32 from NVIDIA's HGX page, 600 TFLOPS for eight.
    _row("b200", bandwidth=8 * TB, memory=180, tflops={32: 75, 16: 2250, 8: 4500}),
    # NVIDIA L4 Tensor Core GPU data sheet: FP32 30.3, BF16 242 and FP8 485 with sparsity, 300 GB/s.
    _row("l4", bandwidth=0.3 * TB, memory=24, tflops={32: 30.3, 16: 121, 8: 242.5}),
    # NVIDIA Ada GPU architecture white paper, appendix A: BF16 165.2 and FP8 330.3 with FP32 accumulation, 1,008 GB/s.
    _row("rtx-4090", bandwidth=1.008 * TB, memory=24, tflops={32: 82.6, 16: 165.2, 8: 330.3}),
    # AMD Instinct MI300X data sheet: FP32 163.4, BF16 1,307.4, FP8 2,614.9, 5.3 TB/s.
    _row("mi300x", bandwidth=5.3 * TB, memory=192, tflops={32: 163.4, 16: 1307.4, 8: 2614.9}),
    # Apple, October 2021: 10.4 TFLOPS of the 32-core GPU, 400 GB/s. One figure for all types: none is named for others.
    _row("m1-max", bandwidth=0.4 * TB, memory=64, tflops={32: 10.4, 16: 10.4}),
    # Apple's specification: 120 GB/s. Apple names no TFLOPS: 10 cores of 128 lanes at the 1.47 GHz that third parties report.
    _row("m4", bandwidth=0.12 * TB, memory=32, tflops={32: 3.76, 16: 3.76}),
    # Apple's specification of the 40-core GPU: 546 GB/s. Four times the cores of the M4, so roughly four times its TFLOPS.
    _row("m4-max", bandwidth=0.546 * TB, memory=128, tflops={32: 15, 16: 15}),
)

HARDWARE = {hardware.name: hardware for hardware in _ROWS}


def hardware_named(name: str) -> Hardware:
    """Return the row of the table with this name, or raise `ParameterError` if there is none."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in HARDWARE:
        raise ParameterError(
            f"hardware must be one of {', '.join(HARDWARE)}, not {name!r}: give other figures by --bandwidth and --peak"
        )
    return HARDWARE[key]


def hardware_of_device(device_name: str) -> Hardware | None:
    """Return the row of a GPU by its driver's name for it, or None if there is none.

    The table has NVIDIA's data-centre GPUs as SXM modules: their PCIe and NVL cards are slower, and not in it.
    """
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    if {"pcie", "nvl", "d", "laptop", "mobile"} & set(words):
        return None
    spelled = f" {' '.join(words)} "
    return next((row for name, row in HARDWARE.items() if f" {name.replace('-', ' ')} " in spelled), None)

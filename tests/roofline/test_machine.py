"""What is measured of a machine; on small sizes, so that the figures themselves mean nothing."""

import subprocess
import sys

import torch

from measuring import hardware


def test_measures_bandwidth_and_peak(monkeypatch):
    monkeypatch.setattr(hardware, "_READ_BYTES", 2**16)
    monkeypatch.setattr(hardware, "_WIDTHS", {"cpu": (16, 32)})
    found = hardware.measured_hardware(torch.float32, device=torch.device("cpu"), seconds=0.0)
    assert found.name == "this-machine"
    assert 0 < found.bandwidth < 1e14
    assert 0 < found.peak(8) == found.peak(16) == found.peak(32) < 1e16
    assert found.memory > 1e8


def test_the_fastest_call_counts(monkeypatch):
    clock = iter([0, 5, 10, 12, 20, 23])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(clock))
    calls = []
    assert hardware.fastest(lambda: calls.append(1), torch.device("cpu"), seconds=0.0) == 2
    assert len(calls) == 4  # one to warm up


def test_the_library_is_pure():
    names = ", ".join(f"setblock.roofline.{name}" for name in "hardware prediction shape".split())
    heavy = {"torch", "transformers", "matplotlib", "numpy"}
    subprocess.run([sys.executable, "-c", f"import sys, {names}; assert not {heavy} & sys.modules.keys()"], check=True)

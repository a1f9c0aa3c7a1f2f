"""What is measured of a machine; on small sizes, so that the figures themselves mean nothing."""

import subprocess
import sys

import pytest
import torch

from setblock.roofline import machine


def test_measures_bandwidth_and_peak(monkeypatch):
    monkeypatch.setattr(machine, "_READ_BYTES", 2**16)
    monkeypatch.setattr(machine, "_WIDTHS", {"cpu": (16, 32)})
    hardware = machine.measured_hardware(torch.float32, device=torch.device("cpu"), seconds=0.0)
    assert hardware.name == "this-machine"
    assert 0 < hardware.bandwidth < 1e14
    assert 0 < hardware.peak(8) == hardware.peak(16) == hardware.peak(32) < 1e16
    assert hardware.memory > 1e8


def test_the_fastest_call_counts(monkeypatch):
    clock = iter([0, 5, 10, 12, 20, 23])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    calls = []
    assert machine.fastest(lambda: calls.append(1), torch.device("cpu"), seconds=0.0) == 2
    assert len(calls) == 4  # one to warm up


@pytest.mark.parametrize("heavy", ["torch", "transformers", "matplotlib", "numpy"])
def test_the_library_is_pure(heavy):
    names = "cost hardware machine prediction shape".split()
    code = (
        f"import sys, {', '.join(f'setblock.roofline.{name}' for name in names)}; assert {heavy!r} not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

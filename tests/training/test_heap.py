"""Freed memory stays with the process: its pages fault once."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from setblock.training.heap import keep_freed_memory

torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "keep" else None

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    parts = [torch.ones(48 << 18) for _ in range(3)]  # 48 MiB each
    return sum(part[-1].item() for part in parts)

for _ in range(8):  # until the heap is as large as it gets
    use()
before = faults()
for _ in range(4):
    use()
print(kept, faults() - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")


def faults_of(argument: str, **environment: str) -> tuple[str, int]:
    """What `keep_freed_memory` returned, and pages that faulted over four rounds of 144 MiB that was allocated and freed."""
    settings = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, argument], env=settings | environment, check=True, capture_output=True, text=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_pages_of_large_temporaries_fault_once() -> None:
    """Without, each of the rounds faults for all of its pages, be they small or huge ones."""
    _, given_back = faults_of("leave")
    kept, faults = faults_of("keep")
    assert kept == "True"
    assert faults * 10 < given_back


def test_settings_of_the_environment_stand() -> None:
    _, given_back = faults_of("leave", MALLOC_MMAP_THRESHOLD_="1000000")
    kept, faults = faults_of("keep", MALLOC_MMAP_THRESHOLD_="1000000")
    assert kept == "False"
    assert faults * 2 > given_back

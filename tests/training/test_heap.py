"""Freed memory stays with the process: its pages fault once."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np  # whose arrays come from malloc, as PyTorch's tensors on a CPU do
from setblock.heap import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    parts = [np.ones(48 << 17) for _ in range(3)]  # 48 MiB each
    return sum(part[-1] for part in parts)

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


@pytest.fixture(scope="module")
def given_back() -> int:
    """Pages that fault where nothing is kept: each of the rounds faults for all of its pages, be they small or huge ones."""
    return faults_of("leave")[1]


def test_pages_of_large_temporaries_fault_once(given_back: int) -> None:
    kept, faults = faults_of("keep")
    assert kept == "True"
    assert faults * 10 < given_back


def test_settings_of_the_environment_stand(given_back: int) -> None:
    kept, faults = faults_of("keep", MALLOC_MMAP_THRESHOLD_="1000000")
    assert kept == "False"
    assert faults * 2 > given_back


HEAPS = """
import ctypes, sys, threading
from setblock.heap import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
keep_freed_memory(for_training=sys.argv[1] == "train")
keep_freed_memory()  # as `setblock.load` does
here, places = libc.malloc(100), []
thread = threading.Thread(target=lambda: places.append(libc.malloc(100)))
thread.start()
thread.join()
print(abs(places[0] - here) >> 30)
"""


@pytest.mark.parametrize(("use", "is_apart"), [("train", True), ("decode", False)])
def test_threads_have_heaps_of_their_own_in_training_alone(use: str, is_apart: bool) -> None:
    """Heaps of threads are GiB away from the first one."""
    settings = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", HEAPS, use], env=settings, check=True, capture_output=True, text=True)
    assert (int(done.stdout) > 0) == is_apart


STEPS = """
import os, sys
import torch
from torch import nn
from setblock.heap import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory(for_training=True)
draw = torch.Generator().manual_seed(0)
tokens, head = nn.Embedding(256, 32), nn.Linear(32, 256, bias=False)
model = nn.Sequential(tokens, nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), head)
optimizer = torch.optim.AdamW(model.parameters())

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def steps(count):
    for _ in range(count):
        row = torch.randint(256, (int(torch.randint(20, 700, (), generator=draw)),), generator=draw)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(row).float(), row)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

before = resident()
steps(100)
early = resident()
steps(1900)
print(early - before, resident() - early)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux says what is resident")
def test_rows_of_changing_length_do_not_grow_the_process() -> None:
    """2,000 steps of 680 lengths: PyTorch's matrix products would keep memory for each of the last 1,024 shapes."""
    settings = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    done = subprocess.run([sys.executable, "-c", STEPS], env=settings, check=True, capture_output=True, text=True)
    first, later = map(int, done.stdout.split())
    assert first < 200, "MiB after 100 steps"
    assert later < 32, "MiB more after 2,000"

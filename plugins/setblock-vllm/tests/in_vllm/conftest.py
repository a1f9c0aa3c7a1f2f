"""Tests in vLLM's own environment (`make test-vllm`); where there is no vLLM, none of them is collected.

vLLM on a CPU, as small as it gets. What is set here is set before vLLM is imported, and inherited by its processes.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",  # there is no compiler for its kernels here
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@pytest.fixture(autouse=True)
def _loud_plugins() -> Iterator[None]:
    """Nothing a test changes in the environment outlives it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)

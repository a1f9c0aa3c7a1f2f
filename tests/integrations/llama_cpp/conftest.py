"""A tiny model in PyTorch and, exported, in llama.cpp. Without llama.cpp, none of these tests runs."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.errors import install_command
from setblock.export.gguf_file import write_gguf
from setblock.integrations.llama_cpp.library import is_installed
from setblock.integrations.llama_cpp.model import LlamaModel, load
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.integrations.llama_cpp.runner import Context
from setblock.model.sbd_model import SBDModel

EXACT = LlamaOptions(n_threads=1, type_k="f32", type_v="f32")
"""The cache in float32, as PyTorch's is."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not is_installed():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"llama.cpp is not installed: {install_command('llama-cpp')}"))


def lengths(context: Context) -> list[int]:
    """Return the position after the last one that each sequence has a cell for."""
    last = context._file.lib.llama_memory_seq_pos_max
    return [int(last(context._memory, sequence)) + 1 for sequence in range(context.sequences)]


Both = tuple[SBDModel, LlamaModel]
Pair = Callable[..., Both]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, trained_tokenizer: PreTrainedTokenizerBase) -> Pair:
    """A model of a family in both runtimes."""

    def made(family: str = "llama", *, mode: str = "shifted", **overrides: object) -> Both:
        sbd = tiny_sbd(family, copy.deepcopy(trained_tokenizer), mode=mode, **overrides)
        path = tmp_path_factory.mktemp("gguf") / f"{family}.gguf"
        write_gguf(sbd, path, weights="f32")
        return sbd, load(path, EXACT)

    return made


@pytest.fixture(scope="session")
def both(pair: Pair) -> Both:
    return pair()

"""An exported UNO adapter goes through SGLang's own loading code: its names, shapes and scaling come back equal.

SGLang needs a GPU to be imported. Here the files that read an adapter are loaded out of its wheel, and all that they import
besides is empty. `pip download --no-deps sglang==0.5.23` gets the wheel, and SGLANG_WHEEL names it.
"""

import importlib
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import save_with_random_adapter, tiny_sbd
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.adapter.files import write_adapter

pytest.importorskip("peft")

WHEEL = os.environ.get("SGLANG_WHEEL")
pytestmark = pytest.mark.skipif(
    WHEEL is None, reason="SGLANG_WHEEL names no wheel: pip download --no-deps sglang==0.5.23"
)

READ = {
    *("sglang.srt.lora.lora", "sglang.srt.lora.lora_config", "sglang.srt.lora.lora_manager"),
    *("sglang.srt.lora.mem_pool", "sglang.srt.lora.utils", "sglang.srt.layers.utils.common"),
    "sglang.srt.lora.eviction_policy",
}
"""What is SGLang's own."""


class Wheel(MetaPathFinder, Loader):
    """Import from a wheel what is in `READ`, and stand-ins for all else of SGLang."""

    def __init__(self, path: str) -> None:
        self.files = zipfile.ZipFile(path)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=name not in READ) if name.split(".")[0] == "sglang" else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in READ:
            file = name.replace(".", "/") + ".py"
            exec(compile(self.files.read(file), file, "exec"), vars(module))
        elif name == "sglang.srt.layers.utils":
            vars(module).update(vars(importlib.import_module(f"{name}.common")))
        else:
            vars(module)["__getattr__"] = stand_in


def stand_in(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (SimpleNamespace,), {}) if name[0].isupper() else MagicMock()


@pytest.fixture
def sglang() -> Iterator[Any]:
    """Gives a module of SGLang by its name below `sglang.srt.lora`."""
    assert WHEEL is not None
    finder = Wheel(WHEEL)
    sys.meta_path.insert(0, finder)
    try:
        yield lambda name: importlib.import_module(f"sglang.srt.lora.{name}")
    finally:
        sys.meta_path.remove(finder)
        finder.files.close()
        for name in [each for each in sys.modules if each.split(".")[0] == "sglang"]:
            del sys.modules[name]


def loaded(sglang: Any, folder: Path, base: torch.nn.Module) -> tuple[Any, Any]:
    """Return SGLang's adapter, and the memory that its kernels read it from, as `init_uno_lora_manager` makes them."""
    config = base.config
    sglang("lora").DefaultModelLoader = FolderLoader
    pool = sglang("mem_pool")
    ranks = dict.fromkeys(("tp_rank", "moe_ep_rank", "moe_tp_rank"), 0)
    sizes = dict.fromkeys(("tp_size", "attn_tp_size", "moe_ep_size", "moe_tp_size"), 1)
    pool.get_parallel = lambda: SimpleNamespace(**ranks, **sizes)
    pool.is_pin_memory_available = lambda: False
    pool.unwrap_lora_layer = lambda layer: layer
    manager_type = sglang("lora_manager").LoRAManager
    manager = manager_type.__new__(manager_type)
    vars(manager).update(
        base_model=base,
        base_hf_config=config,
        load_config=None,
        lora_backend=None,
        speculative_algorithm="UNO",
        attn_dp_enabled=False,
        max_loras_per_batch=2,
        lora_added_tokens_size=None,
    )
    uno = SimpleNamespace(lora_id="uno", lora_name="uno", lora_path=str(folder), pinned=True)
    manager.init_lora_adapters([uno])
    manager.init_lora_shapes()
    memory = pool.LoRAMemoryPool(
        base_hf_config=config,
        max_loras_per_batch=2,
        dtype=torch.bfloat16,
        max_lora_rank=manager.max_lora_rank,
        target_modules=manager.target_modules,
        base_model=base,
        eviction_policy="lru",
        lora_added_tokens_size=manager.lora_added_tokens_size,
        strict_loading=True,
    )
    assert memory.can_support(manager.configs["uno"])
    modules = [{name: Whole() for name in manager.target_modules} for _ in range(config.num_hidden_layers)]
    memory.load_lora_weight_to_buffer("uno", 1, manager.loras["uno"], modules, None, None)
    return manager.loras["uno"], memory


class FolderLoader:
    """Stands in for SGLang's loader of files, which knows GPUs and downloads."""

    def __init__(self, config: None) -> None:
        del config

    @staticmethod
    def Source(path: str, **_: Any) -> str:  # noqa: N802
        return path

    def _get_weights_iterator(self, path: str) -> Iterator[tuple[str, Tensor]]:
        yield from load_file(Path(path) / "adapter_model.safetensors").items()


class Whole:
    """Stands in for a layer on one GPU, which is given all of each weight."""

    @staticmethod
    def slice_lora_a_weights(weight: Tensor) -> Tensor:
        return weight

    slice_lora_b_weights = slice_lora_a_weights


STACKED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "o_proj": ("o_proj",),
    "down_proj": ("down_proj",),
}


@pytest.fixture
def exported(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[Path, torch.nn.Module]:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.prepare_for_training(block_sizes=[4], noise="uniform", causal_block=True, logit_shift=True, noisy_adapter=True)
    save_with_random_adapter(sbd, tmp_path / "model", alpha=64, std=0.1)
    write_adapter(tmp_path / "model" / ADAPTER_FOLDER, sbd.sbd_config, tmp_path / "uno")
    return tmp_path / "uno", sbd.model


def test_an_exported_adapter_comes_back_equal_through_sglang(
    exported: tuple[Path, torch.nn.Module], sglang: Any
) -> None:
    folder, base = exported
    ours = load_file(folder.parent / "model" / ADAPTER_FOLDER / "adapter_model.safetensors")
    adapter, memory = loaded(sglang, folder, base)
    assert adapter.scaling == 64 / 4
    assert memory.A_buffer.keys() == memory.B_buffer.keys() == STACKED.keys()
    compared = set()
    for stacked, names in STACKED.items():
        for layer in range(len(memory.A_buffer[stacked])):
            keys = {
                name: next(
                    key.removesuffix("lora_A.weight")
                    for key in ours
                    if f"layers.{layer}." in key and f"{name}.lora_A" in key
                )
                for name in names
            }
            for kind, buffer in (("lora_A", memory.A_buffer), ("lora_B", memory.B_buffer)):
                parts = [ours[f"{keys[name]}{kind}.weight"].bfloat16() for name in names]
                assert torch.equal(buffer[stacked][layer][1], torch.cat(parts)), (stacked, layer, kind)
                compared |= {f"{keys[name]}{kind}.weight" for name in names}
    assert compared == ours.keys()


def test_sglang_refuses_an_unknown_layer(exported: tuple[Path, torch.nn.Module], sglang: Any) -> None:
    """So the test above would see a wrong name."""
    folder, base = exported
    weights = load_file(folder / "adapter_model.safetensors")
    weights["base_model.model.model.layers.0.self_attn.r_proj.lora_A.weight"] = torch.zeros(4, 32)
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="r_proj"):
        loaded(sglang, folder, base)

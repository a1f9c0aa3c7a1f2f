"""What was written against what should be: by name, shape and sum."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.errors import SetBlockError
from setblock.model.checkpoint import refuse_loss, stored_sums, sums_of

Change = Callable[[dict[str, Tensor]], None]


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(3, 4, generator=generator) for name in "abc"}


def test_the_same_is_whole(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    refuse_loss(sums_of(tensors().items()), stored_sums(tmp_path), tmp_path)


def test_so_is_what_was_rounded_and_what_diverged(tmp_path: Path) -> None:
    diverged = tensors() | {"a": torch.full((3, 4), torch.nan)}
    rounded = {name: w.bfloat16() for name, w in diverged.items()}
    save_file(rounded, tmp_path / "model.safetensors")
    refuse_loss(sums_of(rounded.items()), stored_sums(tmp_path), tmp_path)


def test_parts_under_other_names_are_counted_together() -> None:
    whole, parts = {"gate_up": torch.arange(12.0).view(4, 3), "norm": torch.ones(3)}, {"norm": torch.ones(3)}
    parts |= {"gate": whole["gate_up"][:2], "up": whole["gate_up"][2:]}
    refuse_loss(sums_of(whole.items()), sums_of(parts.items()), "there")
    del parts["up"]
    with pytest.raises(SetBlockError, match="1 of 2 tensors are missing there, in whole or in part, gate_up the first"):
        refuse_loss(sums_of(whole.items()), sums_of(parts.items()), "there")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("b"), "1 of 3 tensors are missing there, in whole or in part, b the first"),
        (lambda t: t["b"].add_(1e-4), r"b has shape \[3, 4\] and sum"),
        (lambda t: t.update(b=t["b"].reshape(4, 3)), r"b has shape \[4, 3\]"),
        (lambda t: t.update(b=t["c"], c=t["b"]), r"(b|c) has shape \[3, 4\] and sum"),
    ],
    ids=["missing", "not up to date", "shape", "swapped"],
)
def test_what_is_lost_is_named(tmp_path: Path, change: Change, message: str) -> None:
    lost = tensors()
    change(lost)
    save_file({name: w.clone() for name, w in lost.items()}, tmp_path / "model.safetensors")
    with pytest.raises(SetBlockError, match=message):
        refuse_loss(sums_of(tensors().items()), stored_sums(tmp_path), tmp_path)


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_save_is_checked(
    family: str, tied: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers stores experts in other parts than a model has them in. A save that loses one leaves nothing behind."""
    sbd = tiny_sbd(family, tokenizer, tie_word_embeddings=tied)
    sbd.save(tmp_path / "whole")
    original: Any = PreTrainedModel.save_pretrained

    def losing(self: PreTrainedModel, folder: str, *, state_dict: dict[str, Tensor], **kwargs: Any) -> None:
        lost = next(name for name, weight in state_dict.items() if "layers.1" in name or "h.1" in name)
        original(self, folder, state_dict={name: w for name, w in state_dict.items() if name != lost}, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", losing)
    with pytest.raises(SetBlockError, match=r"is incomplete: \d+ of"):
        sbd.save(tmp_path / "broken")
    assert not list((tmp_path / "broken").iterdir())


def test_a_tied_weight_is_stored_once(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """Also where the state comes from elsewhere, with a tensor for each name."""
    sbd = tiny_sbd("llama", tokenizer, tie_word_embeddings=True)
    sbd.save(tmp_path, state={name: weight.clone() for name, weight in sbd.model.state_dict().items()})
    assert "lm_head.weight" not in stored_sums(tmp_path)

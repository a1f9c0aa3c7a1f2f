"""Layers that are run again in the backward pass give the gradients of layers that are not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.data.packing import Document, RowDataset, unpacked
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.trainer.trainer import SBDTrainer


def gradients(
    tokenizer: PreTrainedTokenizerBase,
    documents: list[Document],
    folder: Path,
    *,
    family: str,
    adapter: AdapterSection | None,
    **options: Any,
) -> dict[str, Tensor]:
    """Of one training step by the trainer."""
    sbd = tiny_sbd(family, tokenizer)
    assert sbd.sbd_config is not None
    torch.manual_seed(0)
    trainer = SBDTrainer(
        sbd,
        SBDConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=3,
            learning_rate=0.0,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **options,
        ),
        adapter=adapter,
        train_dataset=RowDataset(unpacked(documents)),
    )
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    found: dict[str, Tensor] = {}
    clear = trainer.model.zero_grad

    def keep(*args: Any, **kwargs: Any) -> None:
        found.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
        clear(*args, **kwargs)

    trainer.model.zero_grad = keep
    trainer.train()
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize("cross_entropy", ["plain", "chunked"])
@pytest.mark.parametrize(
    ("family", "adapter"),
    [
        ("llama", None),
        ("gemma3_text", None),
        ("llama", AdapterSection(r=2)),
        ("llama", AdapterSection(r=2, only_noisy=True)),
    ],
    ids=["llama", "gemma3", "lora", "lora on noisy tokens"],
)
def test_the_same_gradients(
    family: str,
    adapter: AdapterSection | None,
    cross_entropy: str,
    tokenizer: PreTrainedTokenizerBase,
    documents: list[Document],
    tmp_path: Path,
) -> None:
    """A gate that has closed by the time a layer is run again would show here."""
    if adapter is not None:
        pytest.importorskip("peft")
    common: dict[str, Any] = {"family": family, "adapter": adapter, "cross_entropy": cross_entropy}
    kept = gradients(tokenizer, documents, tmp_path, **common)
    again = gradients(tokenizer, documents, tmp_path, **common, activation_checkpointing=True)
    assert again.keys() == kept.keys()
    assert len(kept) > 10
    assert any(gradient.abs().max() > 0 for gradient in kept.values())
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-4, atol=1e-6, msg=name)

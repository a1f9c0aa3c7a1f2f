"""Compiled decoder layers give the losses and gradients of layers that are not, from one compilation for all batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DynamoBackend
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.data.packing import Document, RowDataset, unpacked
from setblock.errors import SetBlockError
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.trainer.compiling import CompiledLayers
from setblock.training.trainer.trainer import SBDTrainer

COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
"""Without Inductor, whose code for a CPU takes long to make: what is tried here is which graphs there are."""


def trained(
    tokenizer: PreTrainedTokenizerBase,
    documents: list[Document],
    folder: Path,
    *,
    family: str = "llama",
    adapter: AdapterSection | None = None,
    **options: Any,
) -> tuple[list[float], dict[str, Tensor], list[int]]:
    """The losses, the weights and the graphs compiled by then, of three steps."""
    sbd = tiny_sbd(family, tokenizer)
    torch.manual_seed(0)
    trainer = SBDTrainer(
        sbd,
        SBDConfig(
            output_dir=str(folder),
            max_steps=3,
            per_device_train_batch_size=2,
            learning_rate=1e-3,
            logging_steps=1,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **options,
        ),
        adapter=adapter,
        train_dataset=RowDataset(unpacked(documents)),
    )
    torch._dynamo.reset()
    graphs, step = [], trainer.training_step

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        loss = step(*args, **kwargs)
        graphs.append(counters["stats"]["unique_graphs"])
        return loss

    trainer.training_step = counted
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return losses, {name: p.detach().clone() for name, p in sbd.model.named_parameters()}, graphs


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch warns of what it does itself
@pytest.mark.parametrize(
    ("family", "adapter", "options"),
    [
        ("llama", None, {}),
        pytest.param("gemma3_text", None, {}, marks=pytest.mark.nightly),  # layers of two kinds
        ("llama", None, {"activation_checkpointing": True}),
        pytest.param("llama", None, {"objective": "ntp"}, marks=pytest.mark.nightly),
        pytest.param("llama", AdapterSection(r=2), {}, marks=pytest.mark.nightly),
    ],
    ids=["llama", "gemma3", "checkpointing", "ntp", "lora"],
)
def test_the_same_training(
    family: str,
    adapter: AdapterSection | None,
    options: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    documents: list[Document],
    tmp_path: Path,
) -> None:
    if adapter is not None:
        pytest.importorskip("peft")
    common = {"family": family, "adapter": adapter, **options}
    losses, weights, _ = trained(tokenizer, documents, tmp_path / "a", **common)
    again, compiled, graphs = trained(tokenizer, documents, tmp_path / "b", **common, **COMPILED)
    assert len(losses) == 3
    assert again == pytest.approx(losses, rel=1e-5)
    assert compiled.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(compiled[name], weight, rtol=1e-4, atol=1e-5, msg=name)
    assert graphs[0] > 0
    assert graphs[-1] == graphs[0], "a batch of other lengths is compiled anew"


def test_layers_are_compiled_in_training_steps_only(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    args = SBDConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **COMPILED)
    SBDTrainer(sbd, args)
    assert AcceleratorState().dynamo_plugin.backend == DynamoBackend.NO  # of the whole model
    layers, tokens = CompiledLayers(sbd.model, args), torch.zeros(1, 5, dtype=torch.long)
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    with torch.no_grad():
        plain = sbd.model(tokens).logits
        assert counters["stats"]["unique_graphs"] == before
        with layers.active():
            compiled = sbd.model(tokens).logits
        after = counters["stats"]["unique_graphs"]
        assert after > before
        sbd.model(tokens[:, :3])
    assert counters["stats"]["unique_graphs"] == after
    torch.testing.assert_close(compiled, plain)


def test_what_can_not_be_compiled_is_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = SBDConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **COMPILED)
    with pytest.raises(SetBlockError, match="Linear has no decoder layers that are known here"):
        CompiledLayers(torch.nn.Linear(2, 2), args)
    sharded = tiny_sbd("llama", tokenizer).model
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(SetBlockError, match="does not work with FSDP2"):
        CompiledLayers(sharded, args)
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    pytest.importorskip("peft")
    with pytest.raises(SetBlockError, match=r"torch_compile does not work with adapter\.only_noisy"):
        SBDTrainer(tiny_sbd("llama", tokenizer), args, adapter=AdapterSection(r=2, only_noisy=True))

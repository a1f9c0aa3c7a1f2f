"""What is seen of a run while it goes: its metrics, its speed, and warnings of what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, TrainerControl, TrainerState, TrainingArguments

from families import tiny_model
from setblock.roofline.hardware import HARDWARE, hardware_of_device
from setblock.training.trainer import metrics
from setblock.training.trainer.metrics import MetricsFile, TokenCost, read_metrics


def state_at(step: int) -> TrainerState:
    return TrainerState(global_step=step, max_steps=100, is_world_process_zero=True)


@pytest.fixture
def args(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")


def test_metrics_are_kept_up_to_the_checkpoint_that_a_run_goes_on_from(args: TrainingArguments, tmp_path: Path) -> None:
    callback, control = MetricsFile(), TrainerControl()
    for step in (1, 2, 3, 4):
        callback.on_log(args, state_at(step), control, logs={"loss": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # killed in the middle of it
    callback.on_train_begin(args, state_at(2), control)
    callback.on_log(args, state_at(3), control, logs={"loss": 30.0})
    assert [(entry["step"], entry["loss"]) for entry in read_metrics(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    callback.on_train_begin(args, state_at(0), control)
    assert read_metrics(tmp_path) == []


def test_the_cost_of_a_token_is_six_for_each_weight_of_a_matrix() -> None:
    model = tiny_model("llama", vocab_size=60)
    weights = {name: p.numel() for name, p in model.named_parameters() if p.ndim == 2}
    head, embedding = weights["lm_head.weight"], weights["model.embed_tokens.weight"]
    cost = TokenCost(model)
    assert (cost.layers, cost.head) == (6 * (sum(weights.values()) - head - embedding), 6 * head)
    model.model.requires_grad_(False)
    assert TokenCost(model).layers == 4 * cost.layers / 6
    tied = tiny_model("llama", vocab_size=60, tie_word_embeddings=True)
    assert vars(TokenCost(tied)) == vars(cost)


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", None),
    ],
)
def test_hardware_by_the_name_of_its_driver(device: str, row: str | None) -> None:
    assert hardware_of_device(device) is (None if row is None else HARDWARE[row])


def test_seconds_include_the_data_and_leave_evaluations_and_checkpoints_out(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that stands still but for what takes time here: 1 s a row, 100 s a row of evaluation, 1,000 s a save."""
    from setblock.data.packing import Document, Row, RowDataset, unpacked
    from setblock.model.sbd_model import SBDModel
    from setblock.training.config import SBDConfig
    from setblock.training.trainer.trainer import SBDTrainer

    now = 0.0

    class Slow(RowDataset):
        def __init__(self, rows: list[Row], seconds: float) -> None:
            super().__init__(rows)
            self.seconds = seconds

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            nonlocal now
            now += self.seconds
            return super().__getitem__(index)

    class SlowTrainer(SBDTrainer):
        def save_model(self, *args: Any, **kwargs: Any) -> None:
            nonlocal now
            now += 1000
            super().save_model(*args, **kwargs)

    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now)
    generator = torch.Generator().manual_seed(0)
    rows = unpacked([Document(torch.randint(2, 60, (10,), generator=generator).tolist(), [True] * 10)] * 8)
    peak = 1e9
    trainer = SlowTrainer(
        SBDModel(tiny_model("llama", vocab_size=60, num_hidden_layers=1), tokenizer),
        SBDConfig(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=2,
            objective="ntp",
            logging_steps=2,
            logging_first_step=False,
            eval_strategy="steps",
            eval_steps=1,
            save_steps=1,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        peak=peak,
        train_dataset=Slow(rows, 1.0),
        eval_dataset=Slow(rows, 100.0),
    )
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "tokens_per_second" in entry]
    cost = TokenCost(trainer.model)
    operations = 40 * cost.layers + 36 * cost.head  # of two steps
    seconds = [40 / entry["tokens_per_second"] for entry in entries]
    assert sum(seconds) == pytest.approx(8)  # a row each, of which some are read ahead
    assert [entry["mfu"] for entry in entries] == pytest.approx([operations / (each * peak) for each in seconds])
    json.dumps(entries)

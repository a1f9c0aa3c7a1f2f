"""The trainer: accumulation, block sizes, logs, evaluation; and that a model learns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from families import tiny_model
from setblock.data.documents import Document
from setblock.data.packing import RowCollator, RowDataset, unpacked
from setblock.errors import SetBlockError
from setblock.training.config import SBDConfig
from setblock.training.trainer import SBDTrainer

MASK, END, VOCABULARY = 1, 0, 60


def some_documents(count: int) -> list[Document]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 20, (count,), generator=generator).tolist()
    return [
        Document(torch.randint(2, VOCABULARY, (n,), generator=generator).tolist(), [i >= 3 for i in range(n)])
        for n in lengths
    ]


Make = Callable[..., SBDTrainer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(*, documents: int = 8, mask: int | None = MASK, **options: Any) -> SBDTrainer:
        defaults = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "dataloader_pin_memory": False,
        }
        data = RowDataset(unpacked(some_documents(documents)))
        return SBDTrainer(
            tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2, initializer_range=0.2),
            SBDConfig(**(defaults | options)),
            mask_token_id=mask,
            end_of_text_id=END,
            train_dataset=data,
            eval_dataset=data,
            data_collator=RowCollator(pad_token_id=END),
        )

    return made


def logged(trainer: SBDTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "ntp"},
        {"logit_shift": True, "noisy_copies": 2, "noise_on": "targets", "complete_last_block": True},
        {"ntp_weight": 0.0},
    ],
)
def test_accumulation_equals_a_larger_batch(make: Make, options: dict[str, Any]) -> None:
    """Two steps over the same rows, in one batch of 4 or in four of 1: the same losses, the same weights."""
    whole, parts = (
        make(max_steps=2, per_device_train_batch_size=b, gradient_accumulation_steps=a, **options)
        for b, a in ((4, 1), (1, 4))
    )
    whole.train()
    parts.train()
    for key in ("loss", "ntp_loss", *(["matp_loss"] if "objective" not in options else [])):
        assert len(logged(whole, key)) == 2
        assert logged(parts, key) == pytest.approx(logged(whole, key), rel=1e-3)
    for ours, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_loss_is_eq_14_per_next_token_target(make: Make) -> None:
    """The logged loss is what the two logged terms make it."""
    trainer = make(max_steps=1, per_device_train_batch_size=8, noisy_copies=2, ntp_weight=0.5, matp_weight=3.0)
    sums: dict[str, float] = {}
    keep = trainer._take_means

    def spy(prefix: str) -> dict[str, float]:
        sums.update(trainer._sums)
        return keep(prefix)

    trainer._take_means = spy  # type: ignore[method-assign]
    trainer.train()
    targets = sum(sum(d.carries_loss) for d in some_documents(8))
    assert sums["ntp_count"] == targets
    expected = (0.5 * sums["ntp_sum"] + 3.0 / 2 * sums["matp_sum"]) / targets
    assert logged(trainer, "loss")[0] == pytest.approx(expected, rel=1e-3)
    assert logged(trainer, "ntp_loss")[0] == pytest.approx(sums["ntp_sum"] / targets, rel=1e-3)
    assert logged(trainer, "matp_loss")[0] == pytest.approx(sums["matp_sum"] / sums["matp_count"], rel=1e-3)


def test_the_ntp_term_can_be_dropped(make: Make) -> None:
    """Then no gradient comes from it: only the noisy half moves the weights."""
    trainer = make(ntp_weight=0.0, matp_weight=0.0)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    trainer.model.train()
    assert float(trainer.compute_loss(trainer.model, batch).detach()) == 0
    trainer.args.matp_weight = 1.0
    only_matp = trainer.compute_loss(trainer.model, batch)
    trainer.args.ntp_weight = 1.0
    both = trainer.compute_loss(trainer.model, batch)
    assert 0 < float(only_matp.detach()) < float(both.detach())


def test_block_size_draw(make: Make) -> None:
    """Every size of the set, evenly, and a function of seed and step alone."""
    trainer = make()
    sizes = [trainer.block_size_of(step) for step in range(3000)]
    assert set(sizes) == set(range(2, 17))
    expected = len(sizes) / 15
    assert sum((sizes.count(k) - expected) ** 2 / expected for k in set(sizes)) < 14 + 4 * (2 * 14) ** 0.5
    for options, same in (({}, True), ({"seed": 1}, False)):
        other = make(**options)
        assert (sizes == [other.block_size_of(step) for step in range(3000)]) is same
    only_eight = make(block_sizes=[8])
    assert {only_eight.block_size_of(step) for step in range(20)} == {8}


def test_a_step_uses_the_block_size_drawn_for_it(make: Make) -> None:
    trainer = make(max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, block_sizes=[2, 5, 9])
    used: list[tuple[int, int]] = []
    inner = trainer.training_inputs

    def spy(rows: Any, *, step: int, block_size: int) -> Any:
        used.append((step, block_size))
        return inner(rows, step=step, block_size=block_size)

    trainer.training_inputs = spy  # type: ignore[method-assign]
    trainer.train()
    assert used == [(s, trainer.block_size_of(s)) for s in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("objective", ["sbd", "ntp"])
def test_evaluation_logs_both_terms_and_repeats(make: Make, objective: str) -> None:
    trainer = make(objective=objective, per_device_eval_batch_size=3, mask=MASK if objective == "sbd" else None)
    first, second = (trainer.evaluate() for _ in range(2))
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    keys = {"eval_loss", "eval_ntp_loss"} | ({"eval_matp_loss"} if objective == "sbd" else set())
    for entry in history:
        assert keys <= entry.keys()
        assert ("eval_matp_loss" in entry) == (objective == "sbd")
    assert first["eval_loss"] == second["eval_loss"]
    assert [entry["eval_ntp_loss"] for entry in history] == [history[0]["eval_ntp_loss"]] * 2


def test_sbd_needs_a_mask_token(make: Make) -> None:
    with pytest.raises(ValueError, match="objective 'sbd' needs a mask token"):
        make(mask=None)
    make(mask=None, objective="ntp")


@pytest.mark.parametrize(
    "options", [{}, {"logit_shift": True}, {"objective": "ntp"}, {"matrix_optimizer": "muon"}], ids=str
)
def test_a_small_model_learns_one_batch_by_heart(make: Make, options: dict[str, Any]) -> None:
    settings = {"optim": "adamw_torch", "max_steps": 40, "per_device_train_batch_size": 4, "logging_steps": 8}
    trainer = make(documents=4, block_sizes=[4], **(settings | options))
    trainer.train()
    for key in ("ntp_loss", "matp_loss") if options.get("objective") != "ntp" else ("ntp_loss",):
        losses = logged(trainer, key)
        assert losses[-1] < 0.5 * losses[0], (key, losses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_sizes": []}, r"block_sizes must be integers of at least 1, not \[\]"),
        ({"block_sizes": [4, 0]}, r"block_sizes must be integers of at least 1, not \[4, 0\]"),
        ({"noisy_copies": 0}, "noisy_copies must be at least 1, not 0"),
        ({"ntp_weight": -1.0}, "ntp_weight must be at least 0, not -1.0"),
        ({"objective": "mlm"}, "objective must be one of sbd, ntp, not 'mlm'"),
        ({"noise_on": "all"}, "noise_on must be one of document, targets, not 'all'"),
    ],
)
def test_values_that_are_not_valid(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SBDConfig(output_dir=str(tmp_path), **options)


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    config = SBDConfig(output_dir=str(tmp_path), use_cpu=True)
    assert config.block_sizes == list(range(2, 17))
    assert (config.objective, config.ntp_weight, config.matp_weight, config.logit_shift) == ("sbd", 1.0, 1.0, False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_liger_without_a_gpu_is_refused_in_one_line(make: Make) -> None:
    with pytest.raises(SetBlockError, match=r"training.cross_entropy liger needs a GPU and `pip install liger-kernel`"):
        make(cross_entropy="liger")

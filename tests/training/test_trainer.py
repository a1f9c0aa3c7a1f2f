"""The trainer: accumulation, block sizes, logs, evaluation; and that a model learns."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback

from families import tiny_model, with_mask_token
from measuring.synchronisations import Synchronisations
from setblock.data.packing import Document, RowDataset, pack, unpacked
from setblock.evaluation.during_training import DecodingEvaluator
from setblock.model.protocol.sbd_config import read_sbd_config
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator, drawn_block_size
from setblock.training.recipe import DecodingEvaluationSection
from setblock.training.trainer.trainer import SBDTrainer

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
def make(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Make:
    def made(
        *,
        documents: int = 8,
        mask: int | None = MASK,
        adapter: AdapterSection | None = None,
        vocabulary: int = VOCABULARY,
        **options: Any,
    ) -> SBDTrainer:
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
        model = tiny_model("llama", vocab_size=vocabulary, num_hidden_layers=2, initializer_range=0.2)
        sbd = SBDModel(model, tokenizer) if mask is None else with_mask_token(model, tokenizer, mask_token_id=mask)
        return SBDTrainer(
            sbd, SBDConfig(**(defaults | options)), adapter=adapter, train_dataset=data, eval_dataset=data
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
    keep = trainer._figures

    def spy(prefix: str) -> dict[str, float]:
        sums.update({name: float(value) for name, value in trainer._sums.items()})
        return keep(prefix)

    trainer._figures = spy  # type: ignore[method-assign]
    trainer.train()
    targets = sum(sum(d.carries_loss) for d in some_documents(8))
    assert sums["ntp_count"] == targets
    expected = (0.5 * sums["ntp_sum"] + 3.0 / 2 * sums["matp_sum"]) / targets
    assert logged(trainer, "loss")[0] == pytest.approx(expected, rel=1e-3)
    assert logged(trainer, "ntp_loss")[0] == pytest.approx(sums["ntp_sum"] / targets, rel=1e-3)
    assert logged(trainer, "matp_loss")[0] == pytest.approx(sums["matp_sum"] / sums["matp_count"], rel=1e-3)


def test_the_first_tokens_of_packed_texts_are_no_targets_to_divide_by(make: Make) -> None:
    """A plain text's first token carries a loss where blocks are noised, and no output before it predicts it."""
    texts = [Document(d.token_ids, [True] * len(d)) for d in some_documents(8)]
    trainer = make(max_steps=1, per_device_train_batch_size=8, objective="ntp", mask=None)
    trainer.train_dataset = RowDataset(pack(texts, row_length=64, pad_token_id=END))
    trainer.train()
    (entry,) = (entry for entry in trainer.state.log_history if "ntp_loss" in entry)
    assert entry["loss"] == pytest.approx(entry["ntp_loss"], rel=1e-3)


def test_a_batch_without_a_next_token_target_does_no_harm(make: Make) -> None:
    trainer = make(max_steps=1, per_device_train_batch_size=1)
    trainer.train_dataset = RowDataset(unpacked([Document([5], [True])]))
    trainer.train()
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_only_public_methods_of_the_trainer_are_replaced() -> None:
    """Transformers may change the others in any release."""
    ours = {name for name in vars(SBDTrainer) if name.startswith("_") and not name.startswith("__")}
    assert not ours & set(dir(Trainer))


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


@pytest.mark.in_turn
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_step_uses_the_block_size_drawn_for_it(
    make: Make, workers: int, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every epoch, of which the last steps have fewer batches, and whoever makes the batches."""
    if persistent and not workers:
        pytest.skip("no worker persists")
    trainer = make(
        documents=10,
        max_steps=7,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        block_sizes=[2, 5, 9, 13],
        dataloader_num_workers=workers,
        dataloader_persistent_workers=persistent,
    )
    used: list[tuple[int, int]] = []
    drawn: list[tuple[int, int]] = []
    compute_loss, made = trainer.compute_loss, SBDCollator.inputs

    def spy(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        used.append((trainer.state.global_step, inputs["step"]))
        return compute_loss(model, inputs, *args, **kwargs)

    def draw(self: SBDCollator, rows: Any, *, step: int, block_size: int) -> Any:
        drawn.append((step, block_size))
        return made(self, rows, step=step, block_size=block_size)

    trainer.compute_loss = spy  # type: ignore[method-assign]
    monkeypatch.setattr(SBDCollator, "inputs", draw)
    trainer.train()
    expected = (0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 6)
    assert used == [(s, s) for s in expected]
    if not workers:  # else they are drawn elsewhere, and the next test compares them
        assert drawn[: len(used)] == [(s, drawn_block_size(trainer.args, step=s, max_steps=7)) for s in expected]


@pytest.mark.nightly  # processes of workers start slowly
def test_workers_draw_the_noise_that_the_process_would(make: Make) -> None:
    weights = []
    for workers in (0, 2):
        trainer = make(max_steps=3, per_device_train_batch_size=2, dataloader_num_workers=workers)
        trainer.train()
        weights.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "ntp"},
        {"masked_loss": "total_variation", "cross_entropy": "chunked"},
        {"adapter": AdapterSection(only_noisy=True), "masked_loss": "total_variation"},
    ],
    ids=lambda options: "-".join(options) or "sbd",
)
def test_a_step_waits_for_the_device_in_its_optimiser_alone(make: Make, options: dict[str, Any]) -> None:
    """Between two logs. Batches are made by a worker, so that what is done on the host in any case is not counted."""
    trainer = make(
        documents=32,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        logging_steps=4,
        optim="adamw_torch",
        dataloader_num_workers=1,
        **options,
    )
    seen: list[Counter[str]] = []

    class Watch(TrainerCallback):
        def keep(self, *args: Any, **kwargs: Any) -> None:
            seen.append(waits.counts.copy())

        on_step_begin = on_pre_optimizer_step = on_optimizer_step = on_step_end = keep

    trainer.add_callback(Watch())
    with Synchronisations() as waits:
        trainer.train()
    assert len(seen) == 4 * 4
    for step in (1, 2):  # neither the first one's set-up nor a log
        begin, before, after, end = seen[4 * step : 4 * step + 4]
        assert before - begin == Counter()
        assert end - after == Counter()
        assert seen[4 * step + 4] - end == Counter()


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


def test_a_model_without_a_mask_token_gets_one(make: Make) -> None:
    assert len(make(mask=None).data_collator.noise_ids) == 1
    assert not make(mask=None, objective="ntp").data_collator.noise_ids


@pytest.mark.parametrize(
    "options", [{}, {"objective": "ntp"}, {"logit_shift": True, "matrix_optimizer": "muon"}], ids=str
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


def test_decoding_while_training_is_not_under_autocast(make: Make, tokenizer: PreTrainedTokenizerBase) -> None:
    """Exact mode's text is plain decoding's only in one type throughout. Training steps keep their autocast."""
    trainer = make(bf16=True, max_steps=2, vocabulary=len(tokenizer))
    model = SBDModel(trainer.model, tokenizer, sbd_config=read_sbd_config(trainer.model.config))
    lines = Path(__file__).parents[2] / "tasks" / "lines.py"
    section = DecodingEvaluationSection(task=f"{lines}:line-copy", limit=2, every=1, gammas=[0.1], max_new_tokens=4)
    trainer.add_callback(DecodingEvaluator(trainer, model, section))
    seen = {(True, True): 0, (False, False): 0, (True, False): 0, (False, True): 0}

    def note(module: torch.nn.Module, *_: Any) -> None:
        seen[module.training, torch.is_autocast_enabled("cpu")] += 1

    trainer.model.model.layers[0].register_forward_hook(note)
    trainer.train()
    assert seen[True, True] == 2
    assert seen[False, False] > 3 * 3  # three evaluations of three methods
    assert seen[True, False] == seen[False, True] == 0

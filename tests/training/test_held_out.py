"""Loss on held-out documents before a run and after it, against a loop over the logits of what it starts from and saves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from scores import naive_scores
from setblock.data.packing import Document, documents_of, pack
from setblock.data.texts.encoding import encode_records
from setblock.errors import SetBlockWarning
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.runners.teacher_forcing import TokenScores, token_scores
from setblock.training.recipe import checked_recipe
from setblock.training.run import held_out
from setblock.training.run.held_out import HeldOutScores, held_out_scores
from setblock.training.run.train import train
from setblock.training.trainer.metrics import read_metrics

TEXTS = ("3 bags", "12 apples", "4 * 8 = 32", "It holds 5 rooms.", "15 pages a day", "7 more")
CHATS = [
    [{"role": "user", "content": f"How many are {n}?"}, {"role": "assistant", "content": text}]
    for n, text in enumerate(TEXTS * 2)
]
HELD_OUT = [CHATS[0], [*CHATS[1], *CHATS[2]], CHATS[3]]


@pytest.fixture
def recipe(models: Path, tmp_path: Path) -> dict[str, Any]:
    for name, chats in (("chats", CHATS), ("held-out", HELD_OUT)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return {
        "model": {"path": str(models / "tied-float32")},
        "data": {
            "source": str(tmp_path / "chats.jsonl"),
            "evaluation": {"source": str(tmp_path / "held-out.jsonl")},
            "row_length": 64,
        },
        "training": {
            "output_dir": str(tmp_path / "run"),
            "block_sizes": [4],
            "max_steps": 4,
            "learning_rate": 0.02,
            "save_steps": 2,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
        },
    }


def trained(recipe: dict[str, Any], **more: Any) -> Path:
    return train(*checked_recipe(Path("recipe.yaml"), json.loads(json.dumps(recipe)), overrides={}), **more)


def naive(model: PreTrainedModel, folder: Path) -> tuple[Any, float, int]:
    """By the documents that the encoder makes, which its own tests hold to templates; without the mask token."""
    documents = encode_records(AutoTokenizer.from_pretrained(folder), ({"messages": chat} for chat in HELD_OUT))
    sbd_config = json.loads((folder / "config.json").read_text())["setblock"]
    marked = [(each.token_ids, each.carries_loss) for each in documents]
    loss, accuracy, tokens = naive_scores(model.eval(), marked, banned=sbd_config["mask_token_id"])
    return pytest.approx(loss, rel=1e-3), accuracy, tokens


@pytest.mark.parametrize(
    "adapter", [None, {"r": 2}, {"r": 2, "only_noisy": True}], ids=["all weights", "LoRA", "adapter on the block"]
)
def test_before_and_after_are_those_of_the_checkpoints(recipe: dict[str, Any], adapter: dict[str, Any] | None) -> None:
    if adapter is not None:
        recipe["adapter"] = adapter
        recipe["training"]["learning_rate"] = 0.1
    done: list[tuple[int, int]] = []
    folder = trained(recipe, on_held_out=lambda count, total: done.append((count, total)))
    scores = held_out_scores(read_metrics(folder))
    assert scores is not None
    assert scores.before is not None
    start = AutoModelForCausalLM.from_pretrained(recipe["model"]["path"])
    end = AutoModelForCausalLM.from_pretrained(folder)
    assert (scores.before.loss, scores.before.accuracy, scores.before.tokens) == naive(start, folder)
    assert (scores.after.loss, scores.after.accuracy, scores.after.tokens) == naive(end, folder)
    assert scores.after.documents == len(HELD_OUT)
    if adapter is None or not adapter.get("only_noisy"):
        assert scores.after.loss < scores.before.loss
    else:  # plain decoding stays the base model's
        assert (folder / ADAPTER_FOLDER).is_dir()
        assert scores.after == scores.before
    assert done == [(0, 3), (3, 3)] * 2
    assert f"before and after training: {scores}" in (folder / "README.md").read_text()


def test_the_mask_token_has_no_probability(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model learns not to write it, so the figures alone don't show this."""
    banned: list[int | None] = []

    def noting(*args: Any, mask_token_id: int | None, **kwargs: Any) -> TokenScores:
        banned.append(mask_token_id)
        return token_scores(*args, mask_token_id=mask_token_id, **kwargs)

    monkeypatch.setattr(held_out, "token_scores", noting)
    folder = trained(recipe)
    mask = json.loads((folder / "config.json").read_text())["setblock"]["mask_token_id"]
    assert isinstance(mask, int)
    assert banned == [mask] * 2


def test_a_run_learns_the_same_without(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = load_file(trained(recipe) / "model.safetensors")
    monkeypatch.setattr(HeldOutScores, "measure", lambda self: None)
    recipe["training"]["output_dir"] = str(tmp_path / "other")
    other = trained(recipe)
    assert held_out_scores(read_metrics(other)) is None
    weights = load_file(other / "model.safetensors")
    assert weights.keys() == measured.keys()
    assert all(torch.equal(weights[name], measured[name]) for name in weights)


def test_a_run_that_resumes_keeps_what_it_measured_at_its_start(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(recipe)
    first = held_out_scores(read_metrics(folder))
    (folder / "config.json").unlink()  # as if it had been killed before it was saved, and in its last steps
    (folder / "checkpoint-4" / "trained.json").unlink()
    measure, steps = HeldOutScores.measure, []

    def counted(self: HeldOutScores) -> None:
        steps.append(self._trainer.state.global_step)
        measure(self)

    monkeypatch.setattr(HeldOutScores, "measure", counted)
    with pytest.warns(SetBlockWarning, match="training starts at step 2"):
        trained(recipe)
    assert steps == [4]
    assert held_out_scores(read_metrics(folder)) == first


def test_a_run_without_held_out_documents_measures_nothing(recipe: dict[str, Any]) -> None:
    del recipe["data"]["evaluation"]
    folder = trained(recipe, on_held_out=lambda count, total: pytest.fail("it was measured"))
    assert held_out_scores(read_metrics(folder)) is None
    assert "held-out" not in (folder / "README.md").read_text().partition("## Recipe")[0]


def test_there_is_a_bound_on_what_is_measured(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST_TOKENS", 5)  # fewer than the first document has
    with pytest.warns(
        SetBlockWarning, match="loss is measured on the first 1 held-out documents, for more .* 5 tokens"
    ):
        folder = trained(recipe)
    scores = held_out_scores(read_metrics(folder))
    assert scores is not None
    assert scores.after.documents == 1


def test_packed_documents_come_apart_again(documents: list[Document]) -> None:
    rows = pack(documents, row_length=60, pad_token_id=0)
    assert len(rows) < len(documents)
    apart = sorted((list(each.token_ids), list(each.carries_loss)) for row in rows for each in documents_of(row))
    assert apart == sorted((list(each.token_ids), list(each.carries_loss)) for each in documents)

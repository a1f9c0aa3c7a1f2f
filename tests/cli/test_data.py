"""`setblock data inspect`, and `setblock train` on files: what is shown is what is trained on, and runs go on."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
import torch
import yaml
from safetensors.torch import load_file

from setblock.data.corpus.corpus import CorpusRows
from setblock.data.packing import IGNORE, PADDING
from setblock.masks import CLEAN
from setblock.training.inputs.collator import SBDCollator
from setblock.training.inspection import inspected_row
from setblock.training.recipe import load_recipe
from setblock.training.trainer.trainer import SBDTrainer

from .conftest import run_app


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def write_chats(folder: Path) -> Path:
    path = folder / "chats.jsonl"
    messages = (
        [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"It is {i}." * (1 + i % 3)}]
        for i in range(40)
    )
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    return path


def write_recipe(folder: Path, chats: Path, model: Path) -> Path:
    content = {
        "model": {"path": str(model)},
        "data": {"source": str(chats), "row_length": 64, "evaluation_fraction": 0.2},
        "training": {
            "output_dir": str(folder / "model"),
            "block_sizes": [4],
            "logit_shift": True,
            "noise_on": "targets",
            "max_steps": 6,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-2,
            "use_cpu": True,
            "save_steps": 2,
            "report_to": "none",
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def chats(tmp_path) -> Path:
    return write_chats(tmp_path)


@pytest.fixture
def recipe(tmp_path, chats, sbd_folder) -> Path:
    return write_recipe(tmp_path, chats, sbd_folder)


@contextmanager
def rows_noted() -> Iterator[dict[int, list[list[int]]]]:
    """The rows of each step that is trained meanwhile."""
    rows: dict[int, list[list[int]]] = {}
    compute_loss = SBDTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        if model.training:
            rows.setdefault(self.state.global_step, []).extend(inputs["input_ids"].tolist())
        return compute_loss(self, model, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SBDTrainer, "compute_loss", spy)
        yield rows


@dataclass(frozen=True)
class Whole:
    """A recipe, its run without an interruption, with all of its checkpoints, and the rows of each step."""

    recipe: Path
    folder: Path
    rows: dict[int, list[list[int]]]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sbd_folder) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    path = write_recipe(folder, write_chats(folder), sbd_folder)
    with pytest.MonkeyPatch.context() as patch, rows_noted() as rows:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        assert run_app("train", path, "--set", "training.save_total_limit=null").code == 0
    assert len(rows) == 6
    return Whole(path, folder / "model", rows)


def test_a_row_as_json(run, recipe, chats):
    outcome = run("data", "inspect", recipe, "--json", "--row", 1)
    assert (outcome.code, outcome.stderr) == (0, "")
    shown = json.loads(outcome.stdout)
    clean, noisy, counts = shown["clean"], shown["noisy"], shown["statistics"]
    assert {len(column) for column in clean.values()} == {64}
    assert len({len(column) for column in noisy.values()}) == 1
    assert len(shown["where"]) == max(clean["document_ids"]) + 1
    assert all(re.fullmatch(rf"{re.escape(str(chats))}, line \d+", where) for where in shown["where"])
    for token, label, position, document in zip(
        clean["input_ids"], clean["labels"], clean["position_ids"], clean["document_ids"], strict=True
    ):
        assert label in (None, token)
        assert document != PADDING or (label is None and position == 0)
    # What a clean output learns is the next token's label, of the same document.
    ends = [*(a != b for a, b in zip(clean["document_ids"], clean["document_ids"][1:], strict=False)), True]
    for i, learns in enumerate(clean["predicts"]):
        assert learns == (None if ends[i] else clean["labels"][i + 1])
    # The noisy half holds the answers, each token as it is or masked.
    at = {(d, p): t for d, p, t in zip(clean["document_ids"], clean["position_ids"], clean["input_ids"], strict=True)}
    assert None in noisy["input_ids"]
    for token, position, document in zip(noisy["input_ids"], noisy["position_ids"], noisy["document_ids"], strict=True):
        assert token in (None, at[document, position])
    assert shown["block_size"] == 4
    assert (
        counts["documents"]
        + json.loads(run("data", "inspect", recipe, "--json", "--evaluation").stdout)["statistics"]["documents"]
        == 40
    )
    assert 0 < counts["padding"] < 0.5


def test_a_row_as_text(run, recipe, chats):
    outcome = run("data", "inspect", recipe, "--tokens", 30)
    assert outcome.code == 0
    for said in (
        "rows",
        "documents",
        "padding",
        "row 0: 64 clean tokens",
        f"{chats}, line 1",
        "<mask>",
        "'<|endoftext|>'",
    ):
        assert said in outcome.stdout, said
    assert "… and 34 more; --tokens 0 shows all" in outcome.stdout
    assert "more; --tokens" not in run("data", "inspect", recipe, "--tokens", 0).stdout
    generated = ("--set", "data.source=word-problems", "--set", "data.documents=3", "--set", "data.row_length=null")
    recipe.write_text(recipe.read_text().replace("  evaluation_fraction: 0.2\n", ""))
    outcome = run("data", "inspect", recipe, *generated, "--set", "training.objective=ntp")
    assert "noisy" not in outcome.stdout
    assert re.search(r"padding +0\.0%", outcome.stdout)


def test_what_is_shown_is_what_is_trained_on(run, recipe, monkeypatch):
    """Every row that the trainer gets is the one of its number, and the noise of the first step is that step's."""
    trained: list[tuple[int, Any, Any]] = []
    made = SBDCollator.inputs

    def spy(self, rows, *, step, block_size):
        inputs = made(self, rows, step=step, block_size=block_size)
        trained.append((step, rows, inputs))
        return inputs

    with monkeypatch.context() as patched:
        patched.setattr(SBDCollator, "inputs", spy)
        assert run("train", recipe, "--set", "training.max_steps=1").code == 0
    checked, arguments = load_recipe(recipe)
    of_first_step = [(rows, inputs) for step, rows, inputs in trained if step == 0]  # others were made ahead
    assert of_first_step
    for rows, inputs in of_first_step:
        masked = []  # of all rows' noisy tokens, in order, however they are laid out
        for b, index in enumerate(rows["row_ids"].tolist()):
            shown, _ = inspected_row(checked, arguments, row=index)
            clean, noisy = shown["clean"], shown["noisy"]
            assert clean["input_ids"] == rows["input_ids"][b][: len(clean["input_ids"])].tolist()
            assert clean["labels"] == [None if label == IGNORE else label for label in rows["labels"][b].tolist()]
            masked.append(torch.tensor([token is None for token in noisy["input_ids"]]))
        theirs = inputs.input_ids[inputs.block_ids != CLEAN] == 1
        assert theirs.any()
        assert torch.equal(torch.cat(masked), theirs)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--row", "99"), 2, "--row must be in 0.."),
        (("--set", "data.row_length=8"), 1, "line 1: the document has"),
        (("--set", "data.sauce=x"), 1, "unknown key 'data.sauce'"),
        (("--set", "data.loss_on=user"), 1, "data.loss_on must be one of 'assistant' or 'all', not 'user'"),
        (("--set", "data.evaluation_fraction=1.5"), 1, "data.evaluation_fraction must be below 1, not 1"),
        (("--set", "data.source=null"), 1, "give either source, such as word-problems, or mixture"),
        (
            ("--set", "data.mixture=[{source: a, weight: 0}]"),
            1,
            "data.mixture.0.weight must be above 0, not 0",
        ),
        (("--set", "data.prompt_column=q"), 1, "prompt_column and completion_column go together"),
        (("--set", "data.source=nobody/nothing"), 1, "can't load data source nobody/nothing: there is no such file"),
        (("--set", "data.source=nothing.jsonl"), 1, "data source nothing.jsonl: no such file"),
        (("--set", "data.chat_template=nothing.jinja"), 1, "can't read data.chat_template nothing.jinja: No such file"),
        (
            ("--set", "data.too_long=truncate", "--set", "training.complete_last_block=true"),
            1,
            "data.too_long: truncate and training.complete_last_block exclude each other",
        ),
    ],
)
@pytest.mark.parametrize("command", [("data", "inspect"), ("train",)])
def test_mistakes_are_one_line(run, recipe, command, arguments, code, said):
    if command == ("train",) and "--row" in arguments:
        pytest.skip("an option of inspect")
    outcome = run(*command, recipe, *arguments)
    assert outcome.code == code
    assert outcome.message.startswith("setblock: error: ")
    assert said in outcome.message


def test_a_malformed_line_and_a_missing_template(run, recipe, chats, copied):
    whole = chats.read_text()
    chats.write_text(whole + '{"messages": \n')
    for command in (("data", "inspect"), ("train",)):
        assert f"error: {chats}, line 41: not JSON" in run(*command, recipe).message
    chats.write_text(whole)
    (copied / "chat_template.jinja").unlink()
    outcome = run("train", recipe, "--set", f"model.path={copied}")
    assert (outcome.code, f"{chats}, line 1: messages need a chat template" in outcome.message) == (1, True)


def test_no_rows_to_evaluate_on(run, recipe):
    outcome = run("data", "inspect", recipe, "--evaluation", "--set", "data.evaluation_fraction=null")
    assert (outcome.code, "the recipe has no data to evaluate on" in outcome.message) == (1, True)


def test_a_run_goes_on_in_the_middle_of_an_epoch(run, tmp_path, whole):
    """The rows of each step, and the weights in the end, are those of a run that was not interrupted."""
    shutil.copytree(whole.folder / "checkpoint-2", tmp_path / "model" / "checkpoint-2")
    shutil.copy(whole.folder / "recipe.json", tmp_path / "model")
    with rows_noted() as rows:
        outcome = run("train", whole.recipe, "--output", tmp_path / "model")
    assert outcome.message == "setblock: going on from step 2"
    assert rows == {step: whole.rows[step] for step in range(2, 6)}
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(weights, found[name]) for name, weights in whole.weights.items())


def test_tokenised_data_trains_what_the_file_does(run, recipe, chats, tmp_path, monkeypatch, whole):
    """And a run goes on by skipping: no row that was learned is read again."""
    outcome = run("data", "tokenise", recipe, "--output", tmp_path / "tokens", "--processes", 2)
    assert outcome.code == 0, outcome.stderr
    tokenised = f"data.tokenised={tmp_path / 'tokens'}"
    assert outcome.stdout.splitlines()[1] == f"next: setblock train {recipe} --set {tokenised}"
    chats.unlink()
    monkeypatch.setattr(datasets.Dataset, "from_generator", None)  # nothing is tokenised
    assert run("train", recipe, "--set", tokenised, "--set", "training.save_total_limit=null").code == 0
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(weights, found[name]) for name, weights in whole.weights.items())

    for left in (tmp_path / "model").glob("*"):
        if left.name not in ("checkpoint-4", "recipe.json"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    read: list[int] = []
    get = CorpusRows.__getitem__
    monkeypatch.setattr(CorpusRows, "__getitem__", lambda self, index: read.append(id(self)) or get(self, index))
    outcome = run("train", recipe, "--set", tokenised)
    assert outcome.message == "setblock: going on from step 4"
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(weights, found[name]) for name, weights in whole.weights.items())
    assert read.count(read[0]) <= 2 * 4 + 2, "two steps of four rows, and a batch read ahead"


def test_what_is_left_out_is_reported_by_train(run, recipe, chats):
    with chats.open("a") as file:
        file.write(
            json.dumps({"messages": [{"role": "user", "content": "x" * 99}, {"role": "assistant", "content": ""}]})
        )
    outcome = run("train", recipe, "--set", "data.too_long=drop", "--set", "data.evaluation_fraction=null")
    assert outcome.code == 0
    assert "warning: data: 1 of 41 documents are longer than 64 tokens and were dropped" in outcome.message
    assert f"the first: {chats}, line 41" in outcome.message


def test_a_run_does_not_go_on_with_other_documents(run, recipe, chats):
    """Nor does it mind that the same ones are in a file that was written anew."""
    assert run("train", recipe, "--set", "training.max_steps=2").code == 0
    model = Path(yaml.safe_load(recipe.read_text())["training"]["output_dir"])
    (model / "config.json").unlink()  # killed while it saved
    again = ("train", recipe, "--set", "training.max_steps=2")
    text = chats.read_text()
    chats.write_text(text.replace("What is 3?", "What is 4?"))
    outcome = run(*again)
    assert (outcome.code, "holds a run on other documents" in outcome.stderr) == (1, True)
    chats.write_text(text)
    assert run(*again).code == 0

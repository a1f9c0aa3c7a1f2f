"""`setblock train`: recipes, overrides, and mistakes in them."""

import json

import pytest


@pytest.mark.parametrize("reporter", ["dvclive", "chess"])
def test_a_reporter_that_is_not_installed(run, recipe, tmp_path, reporter):
    folder = tmp_path / "model"
    outcome = run("train", recipe, "--output", folder, "--set", f"training.report_to={reporter}")
    assert outcome.code == 1
    assert outcome.message.startswith(
        f"setblock: error: training.report_to {reporter}: its package is not installed; use none"
    )
    assert not folder.exists()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("task=chess", "there is no task 'chess'; there are instructions, "),
        ("every=0", "evaluate_decoding.every must be "),
        ("gammas=[-1]", "gamma must be"),
    ],
)
def test_decoding_that_can_not_be_evaluated(run, recipe, section, said):
    outcome = run("train", recipe, "--set", f"evaluate_decoding.{section}")
    assert outcome.code in (1, 2)
    assert said in outcome.message


def test_overrides_reach_every_section(run, recipe, tmp_path):
    overrides = (
        "training.max_steps=1",
        "training.learning_rate=1e-4",
        "model.config.hidden_size=8",
        "data.documents=4",
    )
    outcome = run("train", recipe, *(part for each in overrides for part in ("--set", each)))
    assert outcome.code == 0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["hidden_size"] == 8


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lerning_rate=1", "unknown key 'training.lerning_rate', did you mean 'learning_rate'?"),
        ("training.learning_rate=fast", "training.learning_rate must be a number, not 'fast'"),
        ("training.block_sizes=[0]", "block_sizes must be integers of at least 1"),
        ("optimiser.name=sgd", "unknown key 'optimiser'; there are model, data, training, adapter, evaluate_decoding"),
        (
            "data.rows=3",
            "unknown key 'data.rows'; there are name, split, revision, documents, ",
        ),
        ("data.max_length=32", "unknown key 'data.max_length', did you mean 'row_length'?"),
        ("data.documents=0", "data.documents must be at least 1, not 0"),
        ("data.source.name=x", "'source' is not a section"),
        ("data.row_length=8", "has room for 8: set data.too_long"),
        ("model.path=somewhere", "give either path or config"),
        ("model.config.model_type=abacus", "model.config: can't make a model of it"),
        ("model.config.num_attention_heads=0", "model.config: can't make a model of it"),
        ("model.vocab_size=10", "vocab_size must be at least 261, not 10"),
        ("training.learning_rate", "of the form section.key=value"),
        ("training.push_to_hub=true", "training.push_to_hub: nothing would be pushed; run `hf upload REPOSITORY"),
        ("training.learning_rate=[", "is not YAML"),
    ],
)
def test_bad_values_are_one_line(run, recipe, tmp_path, override, said):
    if override.startswith("data.source"):
        recipe.write_text(recipe.read_text().replace("data:", "data:\n  source: word-problems"))
    outcome = run("train", recipe, "--set", override)
    assert outcome.code == 1
    assert outcome.message.startswith("setblock: error: ")
    assert said in outcome.message
    assert not list((tmp_path / "model").glob("*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't read recipe"),
        (b"a: [1", "is not YAML"),
        (b"\xff", "must be valid UTF-8"),
        (b"- 1", "must be a mapping"),
    ],
)
def test_files_that_are_no_recipe(run, tmp_path, content, said):
    if content is not None:
        (tmp_path / "recipe.yaml").write_bytes(content)
    outcome = run("train", tmp_path / "recipe.yaml")
    assert outcome.code == 1
    assert said in outcome.message


def test_output_that_is_a_file_or_the_model_itself(run, recipe, tmp_path, sbd_folder):
    (tmp_path / "file").write_text("")
    assert "can't write to training.output_dir" in run("train", recipe, "--output", tmp_path / "file").message
    start = ("--set", "model.config=null", "--set", "model.vocab_size=null", "--set", f"model.path={sbd_folder}")
    outcome = run("train", recipe, *start, "--output", sbd_folder)
    assert "must not be model.path" in outcome.message

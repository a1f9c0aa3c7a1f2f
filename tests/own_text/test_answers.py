"""Regenerated answers: those of plain decoding, in the shape of the data, and the same after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.data.section import DataSection
from setblock.decoding.generate import generate
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.model.sbd_model import SBDModel
from setblock.own_text import answered, questions_of, regenerate

SETTINGS = DecodingSettings(method="ntp", max_new_tokens=6, temperature=3.0, seed=5)
QUESTIONS = [f"Question {i}:" for i in range(12)]


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    sbd = tiny_sbd("llama", tokenizer, num_hidden_layers=1, max_position_embeddings=512)
    sbd.end_of_text_ids = tuple(range(0, 300, 15))  # so that some answers end by themselves
    return sbd


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_what_each_question_gets_alone(model: SBDModel, tmp_path: Path) -> None:
    done = regenerate(model, QUESTIONS, tmp_path / "own.jsonl", settings=SETTINGS, batch_size=4)
    found = records(tmp_path / "own.jsonl")
    assert done == (12, len(found))
    assert 1 < len(found) < 12, "some end, some are cut and left out"
    numbers = {record["question"] for record in found}
    for number, question in enumerate(QUESTIONS):
        settings = DecodingSettings(method="ntp", max_new_tokens=6, temperature=3.0, seed=5 + number)
        alone = generate(model, question, settings=settings, raw=True)
        assert (number in numbers) == (alone.finish_reason == "stop")
        if number in numbers:
            (record,) = (each for each in found if each["question"] == number)
            assert record == {"question": number, "prompt": question, "completion": alone.text}


def test_an_interrupted_file_is_gone_on_with(model: SBDModel, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    regenerate(model, QUESTIONS, whole, settings=SETTINGS, batch_size=4)
    lines = whole.read_text().splitlines(keepends=True)
    broken.write_text(lines[0] + lines[1][:20])
    regenerate(model, QUESTIONS, broken, settings=SETTINGS, batch_size=2)
    assert broken.read_text() == whole.read_text()


def test_a_file_of_something_else_is_refused(model: SBDModel, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(SetBlockError, match="was not written by this command"):
        regenerate(model, QUESTIONS, path, settings=SETTINGS)
    path.write_text('{"question": 1, "prompt": "Another?", "completion": "Yes."}\n')
    with pytest.raises(SetBlockError, match="holds answers to other questions"):
        regenerate(model, QUESTIONS, path, settings=SETTINGS)


def test_a_folder_in_the_place_of_the_file_is_refused(model: SBDModel, tmp_path: Path) -> None:
    with pytest.raises(SetBlockError, match=r"can't write .*: Is a directory"):
        regenerate(model, QUESTIONS, tmp_path, settings=SETTINGS)


def test_questions_of_every_shape(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "Three and four?"},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "And one?"},
        {"role": "assistant", "content": "Nine."},
        {"role": "user", "content": "Sure?"},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": chat}) + "\n")
    (question,) = questions_of(DataSection(source=str(path)))
    assert question == chat[:3]
    assert answered(question, "Eight.") == {"messages": [*chat[:3], {"role": "assistant", "content": "Eight."}]}

    path.write_text(json.dumps({"messages": chat[:1]}) + "\n")
    (question,) = questions_of(DataSection(source=str(path)))
    assert question == chat[:1], "a message that nobody has answered"

    path.write_text(json.dumps({"q": "1 + 1 =", "a": " 3"}) + "\n")
    (question,) = questions_of(DataSection(source=str(path), prompt_column="q", completion_column="a"))
    assert answered(question, " 2") == {"prompt": "1 + 1 =", "completion": " 2"}

    problems = list(questions_of(DataSection(source="word-problems", documents=2)))
    assert len(problems) == 2
    assert all(str(problem).endswith("\nAnswer:") for problem in problems)

    for content, said in (
        ({"text": "a"}, "a text has no prompt"),
        ({"messages": [chat[1]]}, "no user's message to answer"),
    ):
        path.write_text(json.dumps(content) + "\n")
        with pytest.raises(SetBlockError, match=f"chats.jsonl, line 1: .*{said}"):
            list(questions_of(DataSection(source=str(path))))


def test_a_recipe_trains_on_what_the_command_wrote(model: SBDModel, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from setblock.cli.app import app

    def run(*args: object) -> Any:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    folder, own = tmp_path / "model", tmp_path / "own.jsonl"
    model.model.generation_config.eos_token_id = list(model.end_of_text_ids)
    model.save(folder)
    recipe = {
        "model": {"path": str(folder)},
        "data": {"source": "word-problems", "documents": 6},
        "training": {"output_dir": "x", "use_cpu": True},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    outcome = run("data", "regenerate", tmp_path / "recipe.yaml", "--output", own, "--max-new-tokens", 16)
    assert outcome.exit_code == 0, outcome.output
    assert f"{len(records(own))} answers in {own}" in outcome.stdout
    recipe["data"] = {"source": str(own), "special_tokens": "spell"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    if records(own):
        assert run("data", "inspect", tmp_path / "recipe.yaml", "--json").exit_code == 0

"""Regenerated answers: those of plain decoding, in the shape of the data, and the same after an interruption."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.data.section import DataSection
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import SetBlockError
from setblock.json_lines import PartFile
from setblock.model.sbd_model import SBDModel
from setblock.own_text import Question, answered, called, questions_of, regenerate
from setblock.structure.call_reader import Piece

SETTINGS = DecodingSettings(method="ntp", max_new_tokens=6, temperature=3.0, seed=5)
QUESTIONS = [Question(f"Question {i}:") for i in range(12)]


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
        alone = generate(model, question.prompt, settings=settings, raw=True)
        assert (number in numbers) == (alone.finish_reason == "stop")
        if number in numbers:
            (record,) = (each for each in found if each["question"] == number)
            assert record == {"question": number, "prompt": question.prompt, "completion": alone.text}


def test_an_interrupted_file_is_gone_on_with(model: SBDModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "finish", lambda *_: None)
        regenerate(model, QUESTIONS, broken, settings=SETTINGS, batch_size=4)
    assert not broken.exists()
    part = broken.with_name("broken.jsonl.part")
    lines = part.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:6]) + lines[6][:20])
    requested: list[int] = []
    done = regenerate(model, QUESTIONS, broken, settings=SETTINGS, batch_size=2, on_progress=requested.append)
    assert len(requested) == 4, "five of twelve were answered already"
    assert done == regenerate(model, QUESTIONS, whole, settings=SETTINGS, batch_size=4)
    assert broken.read_text() == whole.read_text()
    assert not part.exists()
    with pytest.raises(SetBlockError, match=r"broken\.jsonl exists already"):
        regenerate(model, QUESTIONS, broken, settings=SETTINGS)


def test_a_part_of_something_else_is_refused(
    model: SBDModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "finish", lambda *_: None)
        regenerate(model, QUESTIONS[:3], path, settings=SETTINGS)
    before = path.with_name("own.jsonl.part").read_bytes()
    other = tiny_sbd("llama", tokenizer, num_hidden_layers=1, max_position_embeddings=512, seed=1)
    for questions, requested, settings, said in (
        (QUESTIONS[:3], other, SETTINGS, r"made with other model: delete it"),
        (QUESTIONS[:3], model, replace(SETTINGS, temperature=2.0), r"made with other settings: delete it"),
        ([*QUESTIONS[:2], QUESTIONS[5]], model, SETTINGS, "holds answers to other questions"),
        (QUESTIONS[:2], model, SETTINGS, "holds answers to other questions"),
    ):
        with pytest.raises(SetBlockError, match=rf"own\.jsonl\.part (was )?{said}"):
            regenerate(requested, questions, path, settings=settings)
    assert path.with_name("own.jsonl.part").read_bytes() == before


def test_a_folder_in_the_place_of_the_file_is_refused(model: SBDModel, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl.part").mkdir()
    with pytest.raises(SetBlockError, match=r"can't write .*: Is a directory"):
        regenerate(model, QUESTIONS, tmp_path / "own.jsonl", settings=SETTINGS)


TOOL = {"type": "function", "function": {"name": "look", "description": "-", "parameters": {"type": "object"}}}
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}{% for m in messages %}"
    "<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    '[call]{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{% endfor %}'
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_chat_keeps_its_tools_calls_and_names(model: SBDModel, tmp_path: Path) -> None:
    """In what is asked, and in what is written."""
    model.tokenizer.chat_template = TEMPLATE
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 3}}}
    chat = [
        {"role": "user", "name": "Ana", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": "A cat."},
        {"role": "assistant", "content": "There is a cat."},
    ]
    source, path = tmp_path / "chats.jsonl", tmp_path / "own.jsonl"
    source.write_text(json.dumps({"messages": chat, "tools": [TOOL]}) + "\n")
    (question,) = questions_of(DataSection(source=str(source)))
    assert question == Question(chat[:3], [TOOL])
    pieces = [Piece("text", "Hm."), Piece("name", "look", call=0), Piece("arguments", '{"at": [4]}', call=0)]
    assert called(question, pieces) == {
        "messages": [
            *chat[:3],
            {
                "role": "assistant",
                "content": "Hm.",
                "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": [4]}}}],
            },
        ],
        "tools": [TOOL],
    }
    assert called(question, [*pieces[:2], Piece("arguments", '{"at": [4}', call=0)]) is None

    fed: list[list[int]] = []
    said = 'Hm.[call]{"name": "look", "arguments": {}}'
    token_ids = model.tokenizer(said, add_special_tokens=False).input_ids
    model.end_of_text_ids = (model.tokenizer.eos_token_id,)

    def generate_batch(model: SBDModel, prompts: list[list[int]], **_: Any) -> list[Any]:
        fed.extend(prompts)
        return [SimpleNamespace(text=said, token_ids=[*token_ids, *model.end_of_text_ids], finish_reason="stop")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setblock.own_text.generate_batch", generate_batch)
        regenerate(model, [question], path, settings=SETTINGS)
    text = model.tokenizer.decode(fed[0])
    assert text == model.tokenizer.apply_chat_template(
        chat[:3], tools=[TOOL], tokenize=False, add_generation_prompt=True
    )
    assert "<user Ana>" in text
    expected = called(question, [*pieces[:2], Piece("arguments", "{}")])
    assert records(path) == [{"question": 0, **(expected or {})}]


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
    assert question.prompt == chat[:3]
    assert answered(question, "Eight.") == {"messages": [*chat[:3], {"role": "assistant", "content": "Eight."}]}

    path.write_text(json.dumps({"messages": chat[:1]}) + "\n")
    (question,) = questions_of(DataSection(source=str(path)))
    assert question.prompt == chat[:1], "a message that nobody has answered"

    path.write_text(json.dumps({"q": "1 + 1 =", "a": " 3"}) + "\n")
    (question,) = questions_of(DataSection(source=str(path), prompt_column="q", completion_column="a"))
    assert answered(question, " 2") == {"prompt": "1 + 1 =", "completion": " 2"}

    problems = list(questions_of(DataSection(source="word-problems", documents=2)))
    assert len(problems) == 2
    assert all(str(problem.prompt).endswith("\nAnswer:") for problem in problems)

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

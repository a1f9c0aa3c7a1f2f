"""Prompts that a model writes itself: what opens them, which are kept, and the same after an interruption."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.model.sbd_model import SBDModel
from setblock.own_text import opened_turn, write_prompts

TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}[system] Be good.\n{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
SETTINGS = DecodingSettings(method="ntp", max_new_tokens=24, temperature=3.0, seed=5)


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    tokenizer.chat_template = TEMPLATE
    sbd = tiny_sbd("llama", tokenizer, num_hidden_layers=1, max_position_embeddings=512)
    sbd.end_of_text_ids = tuple(range(0, 300, 15))  # so that some prompts end by themselves
    return sbd


def texts(path: Path) -> list[str]:
    return [json.loads(line)["messages"][0]["content"] for line in path.read_text().splitlines()]


def test_a_turn_is_opened_as_the_template_writes_it(model: SBDModel) -> None:
    tokenizer = model.tokenizer
    assert tokenizer.decode(opened_turn(tokenizer)) == "[system] Be good.\n[user] "
    assert tokenizer.decode(opened_turn(tokenizer, system="Ask.")) == "[system] Ask.\n[user] "


def test_a_template_that_opens_nothing_is_refused(model: SBDModel) -> None:
    model.tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(SetBlockError, match="writes nothing before a user's message"):
        opened_turn(model.tokenizer)
    model.tokenizer.chat_template = None
    with pytest.raises(SetBlockError, match="has none"):
        opened_turn(model.tokenizer)


def test_prompts_end_by_themselves_and_differ(model: SBDModel, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    written = write_prompts(model, path, count=40, systems=[None, "Ask."], settings=SETTINGS)
    found = texts(path)
    assert written == len(found)
    assert 1 < len(found) < 40, "some end, some are cut or almost empty and left out"
    assert len(set(found)) == len(found)
    assert all(len(text) >= 8 and text == text.strip() for text in found)


def test_an_interrupted_file_is_gone_on_with(model: SBDModel, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    write_prompts(model, whole, count=40, settings=SETTINGS)
    lines = whole.read_text().splitlines(keepends=True)
    broken.write_text(lines[0] + lines[1][:20])
    write_prompts(model, broken, count=40, settings=SETTINGS)
    assert broken.read_text() == whole.read_text()


def test_a_file_of_something_else_is_refused(model: SBDModel, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(SetBlockError, match="was not written by this command"):
        write_prompts(model, path, count=4, settings=SETTINGS)

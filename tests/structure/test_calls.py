"""Calls of tools: any template's own form, its grammar, and the reading of what was written."""

import copy
import json
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerBase

from answers import answers
from setblock import DecodingSettings, EntropyBounded, SetBlockError
from setblock.model.sbd_model import SBDModel
from setblock.structure.calls import CallForm, CallReader, call_form
from setblock.structure.compiled import grammars_of
from structure.templates import HERMES, TEMPLATES

TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer", "maximum": 9, "minimum": 1}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip


def with_template(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return tokenizer


def form_of(tokenizer: PreTrainedTokenizerBase, name: str) -> CallForm:
    return call_form(with_template(tokenizer, TEMPLATES[name]))


def read(form: CallForm, text: str, step: int) -> tuple[str, list[tuple[str, str]]]:
    reader, told, calls = CallReader(form), "", []
    pieces = [piece for at in range(0, len(text), step) for piece in reader.read(text[at : at + step])]
    for piece in [*pieces, *reader.read("", final=True)]:
        if piece.kind == "text":
            told += piece.text
        elif piece.kind == "name":
            calls.append((piece.text, ""))
        else:
            name, arguments = calls[piece.call]
            calls[piece.call] = (name, arguments + piece.text)
    return told, calls


def test_a_template_s_form_is_found(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    hermes = form_of(trained_tokenizer, "hermes")
    assert (hermes.before, hermes.between) == ('<tool_call>\n{"name": "', '", "arguments": ')
    assert (hermes.after, hermes.separator, hermes.trigger) == ("}\n</tool_call>", "\n", "<tool_call>")
    bare = form_of(trained_tokenizer, "bare")
    assert (bare.before, bare.between, bare.after, bare.separator) == ('{"name": "', '", "parameters": ', "}", None)
    special = form_of(trained_tokenizer, "special")
    assert list(special.special) == ["<|reserved_special_token_2|>"]
    assert special.trigger == "<|reserved_special_token_2|>"


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}", "{{ tools }}{{ messages[0].content }}"])
def test_a_template_without_a_place_is_refused(
    template: str | None, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(
        SetBlockError, match=r"the model's chat template (has no place for|does not write calls of) tools"
    ):
        call_form(with_template(trained_tokenizer, template or "{% for m in messages %}{{ m.content }}{% endfor %}"))


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_calls_are_told_from_text_however_it_comes(step: int, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    form = form_of(trained_tokenizer, "hermes")
    arguments = ['{"city": "a\\"}{<tool_call>", "days": 1}', "{}"]
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {each}}}\n</tool_call>'
        for name, each in zip(("weather", "stop"), arguments, strict=True)
    ]
    assert read(form, "Let me <tool see. " + "\n".join(calls), step) == (
        "Let me <tool see. ",
        [("weather", arguments[0]), ("stop", arguments[1])],
    )
    assert read(form, "Only text <tool_cal", step) == ("Only text <tool_cal", [])
    assert read(form, calls[0][:60], step) == ("", [("weather", calls[0][45:60])])


@pytest.mark.in_turn
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_required_calls_are_valid(name: str, method: Any, shifted: SBDModel, prompts: list[list[int]]) -> None:
    form = form_of(shifted.tokenizer, name)
    grammar = form.grammar(TOOLS, required=True, parallel=False)
    asked = [
        DecodingSettings(
            method=method,
            sampler=None if method == "ntp" else EntropyBounded(1.0),
            structure=grammar,
            max_new_tokens=200,
            temperature=temperature,
        )
        for temperature in (0.0, 1.0)
    ]
    for found in answers(shifted, [prompts[0]] * 2, asked):
        assert found.finish_reason == "stop"
        told, ((called, arguments),) = read(form, found.text, 5)
        assert told.strip("]") == ""
        jsonschema.validate(json.loads(arguments), TOOLS[called])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_that_has_begun_is_held_to_its_schema(name: str, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    form = form_of(trained_tokenizer, name)
    for parallel in (False, True):
        grammar = form.grammar(TOOLS, required=False, parallel=parallel)
        begun = f"Hm. {form.trigger}"
        free = grammars_of(trained_tokenizer).matcher(grammar)
        assert free.consume_tokens(trained_tokenizer("No tools, thanks {").input_ids)
        assert free.is_accepting()
        held = grammars_of(trained_tokenizer).matcher(grammar)
        assert held.consume_tokens(trained_tokenizer(begun).input_ids), held.get_error()
        assert not held.is_accepting()
        rest = form.before.partition(form.trigger)[2] + "weather" + form.between + '{"city": "a", "days": 12'
        taken = held.try_consume_tokens(trained_tokenizer(rest).input_ids)
        assert trained_tokenizer.decode(trained_tokenizer(rest).input_ids[:taken]) == rest[:-1]


def test_a_message_that_names_a_special_token_does_not_become_it(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    from setblock.decoding.answer.text import encode_prompt

    tokenizer = with_template(trained_tokenizer, HERMES)
    called = [{"type": "function", "function": {"name": "stop", "arguments": {"a": "<|endoftext|>"}}}]
    ids = encode_prompt(tokenizer, [{"role": "assistant", "content": "", "tool_calls": called}])
    assert ids.count(tokenizer.eos_token_id) == 1, "the one that closes the turn"
    assert '{"a": "<|endoftext|>"}' in tokenizer.decode(ids)

"""The grammar of calls of tools, and the reader of what was written: both see the same calls."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from answers import answers
from families import tiny_sbd
from setblock import DecodingSettings, EntropyBounded
from setblock.decoding.answer.generation import FinishReason
from setblock.structure.call_form import CallForm
from setblock.structure.compiled import grammars_of
from structure.call_shapes import TOOLS, WEATHER, Shape, calls_of
from structure.templates import HERMES, SHAPES, THINKS, with_tokens

ARGUMENTS = st.one_of(
    st.builds(
        lambda city, days: ("weather", json.dumps({"city": city, "days": days}, ensure_ascii=False)),
        st.text('a\\"{}<é🙂\n', max_size=3),
        st.integers(1, 9),
    ),
    st.sampled_from([("weather_now", json.dumps({"city": city})) for city in ("}{", '"', "<tool_call>")]),
    st.sampled_from([("stop", "{}"), ("weather_now", "{}")]),
)


WORDS_OF_TEXT = [
    *("Hi.", " ", "\n", "{", "}", "[", "🙂", '{"name": "', '{"name": "weather', '", "arguments": ', "Action: stop\n", "<"),
    *("<tool_", "</think>", "<think>\n", "</tool_call>", "<|reserved_special_token_1|>", "weather", "Call: ", "[CAL"),
]  # fmt: skip


TEXT = st.lists(st.sampled_from(WORDS_OF_TEXT), max_size=6).map("".join)


STEPS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


OFTEN = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def begins_call(form: CallForm, text: str) -> bool:
    """Naively, whether a call begins in a text: by a mark, or by all that stands before arguments where a call may begin."""
    if form.mark is not None:
        return form.mark in text
    end = form.reasoning_end
    places = [0, *(place + len(end) for place in range(len(text)) if text.startswith(end, place))] if end else [0]
    heads = [form.before + name + form.between for name in TOOLS]
    return any(text[place:].lstrip(" \n").startswith(head) for place in places for head in heads)


@pytest.mark.parametrize("name", SHAPES)
@OFTEN
@given(lead=TEXT, calls=st.lists(ARGUMENTS, min_size=1, max_size=3), steps=STEPS, parallel=st.booleans())
def test_calls_are_distinguished_from_text_however_they_come(
    name: str, lead: str, calls: list[tuple[str, str]], steps: list[int], parallel: bool, shape_of: Any
) -> None:
    """What the grammar takes is read as it was written, whatever pieces it comes in."""
    shape: Shape = shape_of(name)
    form, requested = shape.form, calls_of(shape.tokenizer, parallel=parallel)
    calls = calls if parallel and form.again is not None else calls[:1]
    if form.mark is None:
        lead = lead + form.reasoning_end + "\n\n" if form.reasoning_end and lead else ""
        assume(form.reasoning_end in form.special or "<|" not in lead)
    opening = form.before.partition(form.mark)[0] + form.mark if form.mark else ""
    assume(
        (lead + opening).find(form.mark) == len(lead + opening) - len(form.mark)
        if form.mark
        else not begins_call(form, lead)
    )
    ids = shape.ids(lead) + shape.written_ids(calls)
    assert shape.takes(ids, requested) == (len(ids), True)
    text = lead
    for token in ("<|reserved_special_token_1|>", *form.hidden):
        text = text.replace(token, "")
    text = text if text.strip() else ""
    assert shape.read(ids, requested, steps=steps) == (text, calls)
    assert shape.has_called
    assert shape.read(ids, requested, steps=steps, stop=["never"]) == (text, calls)
    required = calls_of(shape.tokenizer, required=True, parallel=parallel)
    ids = shape.written_ids(calls)
    assert shape.takes(ids, required) == (len(ids), True)
    assert shape.read(ids, required, steps=steps) == ("", calls)


@pytest.mark.parametrize("name", SHAPES)
@OFTEN
@given(text=TEXT, steps=STEPS)
def test_text_without_a_call_stays_whole(name: str, text: str, steps: list[int], shape_of: Any) -> None:
    shape: Shape = shape_of(name)
    assume(not begins_call(shape.form, text))
    requested, ids = calls_of(shape.tokenizer), shape.ids(text)
    assert shape.takes(ids, requested) == (len(ids), True)
    shown = shape.tokenizer.decode(ids, skip_special_tokens=True)
    assert shape.read(ids, requested, steps=steps) == (shown, [])
    assert shape.read(ids, requested, steps=steps, reason="length") == (shown, [])


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_grammar_allows_is_read_as_valid_calls(name: str, data: st.DataObject, shape_of: Any) -> None:
    """A walk through the grammar by any of its tokens, drawn to calls: what is read are offered tools, with arguments of their
    schemas, as many as are allowed."""
    shape: Shape = shape_of(name)
    random = data.draw(st.randoms(use_true_random=False))
    required, parallel = random.random() < 0.5, random.random() < 0.5
    requested = calls_of(shape.tokenizer, required=required, parallel=parallel)
    matcher = grammars_of(shape.tokenizer).matcher(requested.grammar())
    wanted, ids = shape.ids(shape.written([("weather", WEATHER)])), []
    for _ in range(120):
        if matcher.is_accepting() and random.random() < 0.1:
            break
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = [int(each) for each in bits.nonzero()[0] if each != shape.tokenizer.eos_token_id]
        if not allowed:
            break
        likely = wanted[len(ids)] if len(ids) < len(wanted) and random.random() < 0.97 else None
        ids.append(likely if likely in allowed else random.choice(allowed))
        assert matcher.consume_token(ids[-1])
    whole = matcher.is_accepting()
    reason: FinishReason = "stop" if whole else "length"
    text, calls = shape.read(ids, requested, reason=reason)
    assert shape.read(ids, requested, steps=[1], reason=reason) == (text, calls)
    if not (parallel and shape.form.again):
        assert len(calls) <= 1
    for called, arguments in calls if whole else calls[:-1]:
        jsonschema.validate(json.loads(arguments), TOOLS[called])
    assert not (whole and required) or (calls and not text)


@pytest.mark.parametrize("name", ["special", "added", "added and special", "thinks"])
def test_a_mark_that_is_spelled_out_is_text(name: str, shape_of: Any) -> None:
    """A call is decided by tokens. An answer without the mark has no calls, also where the mark's text is nothing."""
    shape: Shape = shape_of(name)
    requested = calls_of(shape.tokenizer)
    for text in ("Hi.", shape.written([("weather", WEATHER)])):
        ids = shape.spelled(text)
        assert shape.takes(ids, requested) == (len(ids), True)
        assert shape.read(ids, requested) == (text, [])


@pytest.mark.parametrize("name", ["bare", "bare list", "words", "thinks, bare", "thinks in text, bare"])
def test_json_in_prose_is_no_call(name: str, shape_of: Any) -> None:
    """Where calls have no mark: neither behind text, nor of a tool that was not offered, nor written in another way."""
    shape: Shape = shape_of(name)
    requested, call = calls_of(shape.tokenizer), shape.written([("weather", '{"city": "anything", "x": []}')])
    for text in (f"As JSON: {call}", call.replace("weather", "Alice"), call.replace(": ", ":")):
        ids = shape.ids(text)
        assert shape.takes(ids, requested) == (len(ids), True)
        assert shape.read(ids, requested, steps=[1]) == (text, [])


def test_a_call_that_has_begun_is_held_to_its_schema(shape: Shape) -> None:
    form = shape.form
    for parallel in (False, True):
        requested = calls_of(shape.tokenizer, parallel=parallel)
        head = f"{form.before}weather{form.between}"
        ids = shape.ids(head + '{"city": "a", "days": 12')
        taken, is_accepting = shape.takes(ids, requested)
        assert shape.tokenizer.decode(ids[:taken]) == head + '{"city": "a", "days": 1'
        assert not is_accepting
        if form.mark is not None:
            ids = shape.ids(f"Hm. {form.before}zebra")
            assert shape.tokenizer.decode(ids[: shape.takes(ids, requested)[0]]) == f"Hm. {form.before}"


def test_no_more_is_read_than_the_grammar_holds(shape: Shape) -> None:
    """Not a second call where one was allowed, and no tool that was not offered."""
    if shape.form.again is not None:
        two, one = [("weather", WEATHER), ("stop", "{}")], calls_of(shape.tokenizer, parallel=False)
        ids = shape.ids(shape.written(two))
        taken, _ = shape.takes(ids, one)
        assert taken < len(ids)
        assert shape.read(ids, one)[1] in ([], two[:1])
        assert shape.read(ids[:taken], one)[1] == two[:1]
    ids = shape.ids(shape.written([("zebra", "{}")]))
    assert shape.read(ids, calls_of(shape.tokenizer))[1] == []


def test_a_call_is_cut_by_a_stop_text_or_the_limit(shape: Shape) -> None:
    """A stop text leaves text and no call, whole and streamed; the limit leaves the call's beginning."""
    requested = calls_of(shape.tokenizer)
    ids = shape.ids(shape.written([("weather", '{"city": "abc", "days": 1}')]))
    before = shape.tokenizer.decode(ids, skip_special_tokens=True).partition("bc")[0]
    for steps in ([1], [3], [1000]):
        assert shape.read(ids, requested, steps=steps, stop=["bc"]) == (before, [])
        assert not shape.has_called
        cut = shape.ids(shape.written([("weather", '{"city": "a')])[: -len(shape.form.after) or None])
        assert shape.read(cut, requested, steps=steps, reason="length") == ("", [("weather", '{"city": "a')])
        assert shape.read(cut, requested, steps=steps, reason="length", stop=["never"]) == (
            "",
            [("weather", '{"city": "a')],
        )
        short = shape.ids(shape.form.before + "wea")
        shown = shape.tokenizer.decode(short, skip_special_tokens=True)
        assert shape.read(short, requested, steps=steps, reason="length") == (shown, [])
    if shape.form.again is not None:  # the first call stands
        ids = shape.ids(shape.written([("stop", "{}"), ("weather", '{"city": "abc", "days": 1}')]))
        text, calls = shape.read(ids, requested, steps=[2], stop=["bc"])
        assert calls == [("stop", "{}")]
        assert text.endswith('{"city": "a')
        assert not shape.has_called  # the reason is the stop text


@pytest.mark.in_turn
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
@pytest.mark.parametrize("name", SHAPES)
def test_required_calls_are_valid(name: str, method: Any, shape_of: Any, prompts: list[list[int]]) -> None:
    shape: Shape = shape_of(name)
    model = tiny_sbd("llama", shape.tokenizer, mode="shifted", max_position_embeddings=512)
    calls = calls_of(shape.tokenizer, required=True, parallel=False)
    requested = [
        DecodingSettings(
            method=method,
            sampler=None if method == "ntp" else EntropyBounded(1.0),
            structure=calls.grammar(),
            max_new_tokens=200,
            temperature=temperature,
        )
        for temperature in (0.0, 1.0)
    ]
    for found in answers(model, [prompts[0]] * 2, requested):
        assert found.finish_reason == "stop"
        text, ((called, arguments),) = shape.read(found.token_ids[:-1], calls, steps=[5])
        assert text == ""
        jsonschema.validate(json.loads(arguments), TOOLS[called])


def test_reasoning_before_a_call_is_text(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    """Also where the template writes no empty think block."""
    for template in (THINKS, THINKS.replace("loop.last or ", "")):
        shape = Shape(with_tokens(trained_tokenizer, template, SHAPES["thinks"][1]))
        requested = calls_of(shape.tokenizer)
        thought = "<think>\nThe user asks.\n</think>\n\n"
        ids = shape.ids(thought + shape.written([("weather", WEATHER)]))
        assert shape.takes(ids, requested) == (len(ids), True)
        assert shape.read(ids, requested, steps=[1]) == (thought, [("weather", WEATHER)])


def test_a_message_that_names_a_special_token_does_not_become_it(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    from setblock.decoding.answer.prompt import encode_prompt

    tokenizer = with_tokens(trained_tokenizer, HERMES)
    called = [{"type": "function", "function": {"name": "stop", "arguments": {"a": "<|endoftext|>"}}}]
    ids = encode_prompt(tokenizer, [{"role": "assistant", "content": "", "tool_calls": called}])
    assert ids.count(tokenizer.eos_token_id) == 1, "the one that closes the turn"
    assert '{"a": "<|endoftext|>"}' in tokenizer.decode(ids)

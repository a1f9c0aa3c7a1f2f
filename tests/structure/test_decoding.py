"""Answers under a grammar: exact ones are Transformers' own, the others valid, alone and in batches."""

import json
import math
import os
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel
from transformers import PreTrainedTokenizerBase

from answers import answers, assert_same
from running import check_that_rows_come_and_go_as_alone
from setblock import DecodingSettings, EntropyBounded, generate, load, stream
from setblock.decoding.constraints.constrained import ConstrainedBlock
from setblock.decoding.step.logits import Logits, read_best
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel
from setblock.structure import Choice, Grammar, JsonObject, JsonSchema, Regex, compiled
from setblock.structure.compiled import Matcher
from structure.oracle import by_transformers
from structure.schemas import SCHEMAS, drawn_schemas

pytestmark = pytest.mark.usefixtures("longest_drafts")

TOKENS = 48
GAMMAS = (0.0, 0.5, 4.0, math.inf)
OTHERS: dict[str, Any] = {
    "regex": Regex("(ab|c/d){2,3}-[0-9]+ end"),
    "choice": Choice(["yes", "no", 'no "comment"', "yes, да"]),
    "grammar": Grammar('start: sum\nsum: NUMBER | NUMBER " + " sum\nNUMBER: /[0-9]{1,2}/'),
    "object": JsonObject(),
}


def of_kinds(method: Any) -> list[DecodingSettings]:
    """A row for each form, every fourth without one."""
    forms = [*SCHEMAS.values(), *OTHERS.values()]
    base = DecodingSettings(method=method, max_new_tokens=TOKENS, block_size=7)
    found = [
        replace(
            base,
            structure=form if place % 4 else None,
            sampler=None if method == "ntp" else EntropyBounded(GAMMAS[place % 4]),
            temperature=(0.0, 0.0, 1.3)[place % 3],
            seed=place,
        )
        for place, form in enumerate(forms)
    ]
    found[1] = replace(found[1], repetition_penalty=1.4, logit_bias={40: 3.0})
    found[2] = replace(found[2], stop=("e",), top_p=0.9)
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize("name", [*SCHEMAS, *OTHERS])
def test_exact_is_what_transformers_gives(
    name: str, sbd: SBDModel, prompts: list[list[int]], trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    form = {**SCHEMAS, **OTHERS}[name]
    wanted = [by_transformers(sbd, each, form, tokens=TOKENS, tokenizer=sbd.tokenizer) for each in prompts]
    for method, lookup in (("ntp", None), ("exact", None), ("exact", 1)):
        base = DecodingSettings(method=method, max_new_tokens=TOKENS, structure=form, prompt_lookup=lookup)  # type: ignore[arg-type]
        for found, expected in zip(answers(sbd, prompts, [base] * len(prompts)), wanted, strict=True):
            assert found.token_ids == expected
            assert found.finish_reason == ("stop" if expected[-1] in sbd.end_of_text_ids else "length")


@pytest.mark.in_turn
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_company_changes_nothing(method: str, sbd: SBDModel, prompts: list[list[int]]) -> None:
    """In one batch, with rows of other forms and of none; drawn, penalised and stopped as without."""
    requested = of_kinds(method)
    rows = [prompts[place % 3] for place in range(len(requested))]
    for prompt, each, found in zip(rows, requested, answers(sbd, rows, requested), strict=True):
        assert found.finish_reason in ("stop", "length")
        (alone,) = answers(sbd, [prompt], [each])
        assert_same(found, alone)
        assert found.passes == alone.passes
    if method == "exact":
        plain = answers(sbd, rows, [replace(each, method="ntp", sampler=None) for each in requested])
        assert [each.token_ids for each in plain] == [each.token_ids for each in answers(sbd, rows, requested)]


@pytest.mark.parametrize("method", ["sbd", "exact"])
def test_the_engine_gives_what_a_request_gives_alone(method: str, shifted: SBDModel, prompts: list[list[int]]) -> None:
    """Grammars come and go with their rows, which lose their cache on the way."""
    requested = of_kinds(method)[:14]
    wanted = [Request(str(place), prompts[place % 3], each) for place, each in enumerate(requested)]
    limits = EngineLimits(max_num_seqs=5, kv_tokens=160, page_tokens=8, max_num_batched_tokens=40)
    check_that_rows_come_and_go_as_alone(shifted, wanted, limits)


@settings(max_examples=int(os.environ.get("DRAWN_SCHEMAS", "25")), suppress_health_check=list(HealthCheck))
@given(schema=drawn_schemas())
def test_what_ends_is_valid(schema: dict[str, Any], shifted: SBDModel, prompts: list[list[int]]) -> None:
    """By a library that is not the grammar's. What does not end could: its beginning is one of a valid text's. Four answers to
    a schema; DRAWN_SCHEMAS=500 in the environment has 2,000."""
    requested = [
        DecodingSettings(
            method="sbd",
            sampler=EntropyBounded(gamma),
            block_size=8,
            max_new_tokens=96,
            structure=schema,
            temperature=temperature,
            seed=3,
        )
        for gamma in (0.1, math.inf)
        for temperature in (0.0, 1.0)
    ]
    for found in answers(shifted, [prompts[0]] * len(requested), requested):
        assert found.finish_reason in ("stop", "length")
        if found.finish_reason == "stop":
            jsonschema.validate(json.loads(found.text), schema)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_revealed_can_be_finished(name: str, sbd: SBDModel, prompts: list[list[int]]) -> None:
    """After each pass there are no gaps before what is revealed, and the grammar takes all of it."""
    from setblock.structure.compiled import grammars_of
    from setblock.structure.kinds import structure_of

    requested = DecodingSettings(
        method="sbd", sampler=EntropyBounded(2.0), block_size=8, max_new_tokens=40, structure=SCHEMAS[name]
    )
    text: dict[int, int] = {}
    for chunk in stream(sbd, prompts[1], settings=requested):
        text |= {each.index: each.token_id for each in chunk.event.revealed}
        written = [text[place] for place in range(len(text))]  # a gap would be a KeyError
        matcher = grammars_of(sbd.tokenizer).matcher(structure_of(requested.structure))
        assert matcher.consume_tokens(written), matcher.get_error()


def test_the_grammar_saves_passes(shifted: SBDModel, prompts: list[list[int]]) -> None:
    """What it forces costs none, and no entropy; also where the model was never trained for blocks."""
    forced = {"type": "object", "properties": {"a_long_name_of_a_field": {"const": "and a long value of it"}}}
    forced |= {"required": ["a_long_name_of_a_field"], "additionalProperties": False}
    free = SBDModel(shifted.model, shifted.tokenizer)
    assert free.sbd_config is None
    for model, method in ((shifted, "sbd"), (shifted, "exact"), (free, "exact")):
        requested = DecodingSettings(
            method=method,  # type: ignore[arg-type]
            sampler=EntropyBounded(0.0),
            block_size=16,
            structure=forced,
            prompt_lookup=0,
        )
        found = generate(model, prompts[0], settings=requested)
        assert found.text == '{"a_long_name_of_a_field": "and a long value of it"}'
        assert max(found.entropy) == 0
        assert found.passes.decoding <= math.ceil(found.num_tokens / 16)


def test_copies_are_drafted_under_a_grammar(shifted: SBDModel, prompts: list[list[int]]) -> None:
    """In a model that was never trained for blocks: what stands in the text already costs fewer passes, and the text stays."""
    free = SBDModel(shifted.model, shifted.tokenizer)
    digits = {token_id for token_id in range(free.vocab_size) if free.tokenizer.decode([token_id]) in tuple("89")}
    requested = DecodingSettings(
        method="exact",
        structure=Regex("[89]{40}"),
        block_size=16,
        logit_bias={token_id: 30.0 * place for place, token_id in enumerate(sorted(digits))},
    )
    wanted = generate(free, prompts[0], settings=replace(requested, method="ntp"))
    without, found = (generate(free, prompts[0], settings=replace(requested, prompt_lookup=each)) for each in (0, 1))
    assert found.token_ids == without.token_ids == wanted.token_ids
    assert without.passes.decoding == wanted.passes.decoding
    assert found.passes.decoding < without.passes.decoding / 4


def test_a_grammar_that_gives_up_allows_nothing(shifted: SBDModel) -> None:
    """As it does where an answer makes it too complex; the row ends in an error then, and no other."""
    matcher = Matcher(Regex("(ab)+"), shifted.tokenizer, ends=[0])
    allowed = torch.ones(shifted.vocab_size, dtype=torch.bool)
    matcher.fill(allowed)
    assert allowed.any()
    matcher.reveal(shifted.tokenizer("x").input_ids)
    matcher.fill(allowed)
    assert not allowed.any()
    matcher.retract(1)
    matcher.fill(allowed)
    assert not allowed.any()


def test_compiled_grammars_are_bounded(shifted: SBDModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", 3)
    grammars = compiled.Grammars(shifted.tokenizer)
    for number in range(5):
        grammars.matcher(Regex(f"a{number}"))
    assert grammars._recent.cache_info().currsize == 3
    for known, hits in (("a2", 1), ("b", 1), ("a2", 2), ("a3", 2)):  # "b" took the place of "a3", not of "a2"
        grammars.matcher(Regex(known))
        assert grammars._recent.cache_info().hits == hits
    assert grammars._recent.cache_info().currsize == 3


def test_the_sampler_s_bound_holds_where_it_left_the_first_place_out() -> None:
    """The first place is revealed in any case, and then only what costs nothing goes with it."""
    candidates = torch.tensor([[False, True, True, True, True]])
    nowhere = torch.zeros((1, 5), dtype=torch.long)
    flat = torch.zeros((1, 5, 3))
    logits = Logits(flat, nowhere, candidates, read_best(flat, nowhere), width=5)
    block = ConstrainedBlock(logits, candidates, torch.tensor([[True]]), nowhere)
    entropy = torch.tensor([[9.0, 2.0, 0.0, 0.1, 0.0]])
    revealed = ~candidates
    without_first = torch.tensor([[False, False, True, True, True]])
    kept = block.kept(without_first, nowhere, revealed=revealed, entropy=entropy)
    assert kept.tolist() == [[False, True, True, False, False]]
    kept = block.kept(candidates, nowhere, revealed=revealed, entropy=entropy)
    assert kept.tolist() == candidates.tolist()


def test_objects_of_a_pydantic_model_have_its_fields_only() -> None:
    class Inner(BaseModel):
        x: int

    class Outer(BaseModel):
        inner: Inner

    schema = json.loads(JsonSchema(Outer).schema)
    assert schema["additionalProperties"] is schema["$defs"]["Inner"]["additionalProperties"] is False
    assert DecodingSettings(structure=Outer).structure == JsonSchema(Outer)
    assert "additionalProperties" not in JsonSchema({"type": "object", "properties": {"a": {}}}).schema


def test_logprobs_are_the_model_s_own(shifted: SBDModel, prompts: list[list[int]]) -> None:
    """Not those of the allowed tokens alone."""
    requested = DecodingSettings(method="exact", structure=SCHEMAS["flat"], logprobs=0, max_new_tokens=30)
    exact = generate(shifted, prompts[0], settings=requested)
    ntp = generate(shifted, prompts[0], settings=replace(requested, method="ntp"))
    assert exact.logprobs is not None
    assert ntp.logprobs is not None
    assert [e.logprob for e in exact.logprobs] == pytest.approx([e.logprob for e in ntp.logprobs])
    assert min(each.logprob for each in ntp.logprobs) < -1  # what is forced may be unlikely


def test_no_way_out_is_an_error(shifted: SBDModel, prompts: list[list[int]]) -> None:
    """Where a ban leaves nothing that the grammar allows."""
    (one,) = {each for each in range(shifted.vocab_size) if shifted.tokenizer.decode([each]) == "1"}
    for method in ("sbd", "exact", "ntp"):
        requested = DecodingSettings(method=method, structure=Regex("a1b"), banned_tokens=[one])  # type: ignore[arg-type]
        (found,) = answers(shifted, [prompts[0]], [requested])
        assert (found.finish_reason, found.text) == ("error", "a")
        assert found.error is not None
        assert found.error.message.startswith("structure leaves no token to choose after 1 tokens")


def test_the_bundled_model_takes_what_its_vocabulary_has() -> None:
    model = load()
    for method in ("sbd", "exact", "ntp"):
        requested = DecodingSettings(method=method, structure=Regex("[0-9]{2} apples"))  # type: ignore[arg-type]
        found = generate(model, "Tom has 12 apples and buys 3 more. How many does he have?", settings=requested)
        assert found.finish_reason == "stop"
        assert found.text[2:] == " apples"
        assert found.text[:2].isdecimal()


def test_a_copied_draft_that_is_banned_is_no_way_out_either(shifted: SBDModel) -> None:
    (one,) = shifted.tokenizer("1").input_ids
    prompt = shifted.tokenizer("a1b a1b ").input_ids
    requested = DecodingSettings(structure=Regex("a1b"), banned_tokens=[one], prompt_lookup=1)
    exact, plain = (answers(shifted, [prompt], [replace(requested, method=each)])[0] for each in ("exact", "ntp"))  # type: ignore[arg-type]
    assert (exact.token_ids, exact.finish_reason, exact.error) == (plain.token_ids, plain.finish_reason, plain.error)

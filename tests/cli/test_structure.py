"""The options that say what form an answer has."""

import json

import pytest

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

QUESTION = "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"


def test_answers_have_the_form(run, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    number = '{"type": "integer", "minimum": 0, "maximum": 99}'
    schema.write_text(
        f'{{"type": "object", "properties": {{"n": {number}}}, "required": ["n"], "additionalProperties": false}}'
    )
    grammar.write_text('start: "a" | "b"')
    printed = run("generate", QUESTION, "--json-schema", schema, "--max-new-tokens", 40, "--json").stdout
    assert json.loads(json.loads(printed)["text"]).keys() == {"n"}
    for options, texts in (
        (("--choice", "yes", "--choice", "no"), {"yes", "no"}),
        (("--regex", "x{3}"), {"xxx"}),
        (("--grammar", grammar), {"a", "b"}),
    ):
        assert json.loads(run("generate", QUESTION, *options, "--json").stdout)["text"] in texts


def test_a_schema_that_is_none(run, tmp_path):
    """A file of records is one, or is JSON by chance where it has one line."""
    record, path = '{"prompt": "a", "completion": "b"}\n', tmp_path / "qa.jsonl"
    path.write_text(2 * record)
    assert "schema must be JSON, and is not: Extra data" in run("generate", QUESTION, "--json-schema", path).message
    path.write_text(record)
    said = "schema must have keywords of JSON Schema, such as type or properties, and has prompt, completion"
    assert said in run("generate", QUESTION, "--json-schema", path).message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--regex", "(a"), "regex can't be used: "),
        (("--regex", "a", "--choice", "b"), "give one of them"),
        (("--json-schema", "missing.json"), "can't read missing.json: No such file or directory"),
        (("--regex", "a", "--min-new-tokens", 3), "min_new_tokens must be 0 with a structure"),
    ],
)
def test_mistakes(run, options, said):
    outcome = run("generate", QUESTION, *options)
    assert outcome.code != 0
    assert said in outcome.stderr.splitlines()[-1]  # the included model may be warned of before

"""A file of prompts, pairs or chats as a task: what is asked, what is right, and what is refused."""

import json

import pytest

from setblock.data.tasks import Verdict
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import SetBlockError
from setblock.evaluation.records import JUDGES, task_of_records
from setblock.evaluation.run import evaluate
from setblock.model.loading.loading import load

QUESTION = "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"
SHORT = DecodingSettings(max_new_tokens=24)


@pytest.fixture(scope="module")
def model():
    return load()


@pytest.fixture
def written(tmp_path):
    def written(*records, name="own.jsonl"):
        path = tmp_path / name
        path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in records))
        return path

    return written


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def test_the_answers_are_those_of_generate(model, written):
    chat = [user("Hi"), assistant("Hello"), user(QUESTION)]
    result = evaluate(model, task_of_records(written({"prompt": QUESTION}, {"messages": chat})), settings=SHORT)
    plain = DecodingSettings(method="ntp", max_new_tokens=24)
    alone = [generate(model, prompt, settings=plain).token_ids for prompt in (QUESTION, chat)]
    assert result.plain.token_ids == alone
    assert (result.identical_to_ntp, result.accuracy) == (1, None)
    raw = evaluate(model, task_of_records(written({"prompt": "Tom"}), raw=True), settings=SHORT)
    assert raw.plain.token_ids == [generate(model, "Tom", settings=plain, raw=True).token_ids]


def test_a_reference_is_a_completion_or_the_last_message_of_a_chat(model, written):
    answer = generate(model, QUESTION).text
    right = written(
        {"prompt": QUESTION, "completion": answer, "source": "mine"}, {"messages": [user(QUESTION), assistant(answer)]}
    )
    assert evaluate(model, task_of_records(right)).accuracy == 1
    wrong = written(
        {"prompt": QUESTION, "completion": f"{answer}0"}, {"messages": [user(QUESTION), assistant("#### 19")]}
    )
    assert evaluate(model, task_of_records(wrong)).accuracy == 0
    assert evaluate(model, task_of_records(wrong, judge="last-number")).outcomes.correct == (0, 1)


@pytest.mark.parametrize(
    ("judge", "reference", "answer", "verdict"),
    [
        ("exact-match", "yes", " yes\n", Verdict(True)),
        ("exact-match", "yes", "yes.", Verdict(False)),
        ("contains", "Paris", "It is Paris.", Verdict(True)),
        ("contains", "Paris", "It is paris.", Verdict(False)),
        ("last-number", "#### 1,250", "10 and 1250.0 dollars", Verdict(True)),
        ("last-number", "-3", "it is 3", Verdict(False)),
        ("last-number", "3", "none", Verdict(False)),
        ("json", '{"a": 1, "b": [2]}', ' {"b": [2], "a": 1}', Verdict(True, {"fields": 1.0})),
        ("json", '{"a": 1, "b": [2]}', '{"a": 1, "b": [3]}', Verdict(False, {"fields": 0.5})),
        ("json", '{"a": null}', "{}", Verdict(False, {"fields": 0.0})),
        ("json", '{"a": 1}', '```json\n{"a": 1}\n```', Verdict(False, {"fields": 0.0})),
        ("json", "[1]", "[1]", Verdict(True, {"fields": 1.0})),
        ("json", "[1]", "[1.0]", Verdict(True, {"fields": 1.0})),
        ("json", "[1]", "[true]", Verdict(False, {"fields": 0.0})),
        ("json", '{"a": true, "b": 0}', '{"a": 1, "b": 0}', Verdict(False, {"fields": 0.5})),
        ("json", '{"a": {"b": [0]}}', '{"a": {"b": [false]}}', Verdict(False, {"fields": 0.0})),
        ("json", '{"a": 1}', '{"a": ' * 20_000, Verdict(False, {"fields": 0.0})),
        ("json", '{"a": 1}', '{"a": ' * 500 + "1" + "}" * 500, Verdict(False, {"fields": 0.0})),
    ],
)
def test_judges(judge, reference, answer, verdict):
    assert JUDGES[judge](reference, answer) == verdict


@pytest.mark.parametrize(
    ("records", "how", "said"),
    [
        (["{"], {}, r"own.jsonl, line 1: not JSON"),
        (["[1]"], {}, r"line 1: a record must be a JSON object, not \[1\]"),
        ([], {}, "own.jsonl has no records"),
        ([{"prompt": "a"}, {"text": "a"}], {}, "line 2 must have either prompt or messages, not text"),
        ([{"prompt": "a", "messages": [user("a")]}], {}, "line 1 must have either prompt or messages"),
        ([{"prompt": " "}], {}, "line 1 must have a text under \"prompt\", not ' '"),
        ([{"prompt": [1, 2]}], {}, r'line 1 must have a text under "prompt", not \[1, 2\]'),
        ([{"prompt": "a", "completion": 3}], {}, 'line 1 must have a text under "completion", not 3'),
        ([{"messages": []}], {}, "line 1: messages must be a list"),
        ([{"messages": [{"role": "user"}]}], {}, "line 1: message 1 has no content"),
        ([{"messages": [assistant("a")]}], {}, "line 1: messages has an assistant's message alone"),
        (
            [{"prompt": "a", "completion": "b"}, {"prompt": "a"}],
            {},
            "line 2 has no right answer, and the first record has one",
        ),
        (
            [{"prompt": "a"}, {"prompt": "a", "completion": "b"}],
            {},
            "line 2 has a right answer, and the first record has none",
        ),
        ([{"prompt": "a"}], {"judge": "contains"}, "judge contains needs right answers, and .* has none"),
        (
            [{"prompt": "a", "completion": "b"}],
            {"judge": "last-number"},
            "line 1: judge last-number can't compare with 'b'",
        ),
        ([{"prompt": "a"}], {"judge": "exact"}, "judge must be one of exact-match, .*, not 'exact'"),
        ([{"messages": [user("a")]}], {"raw": True}, "line 1 is a chat, which needs the chat template: leave out raw"),
    ],
)
def test_mistakes_name_the_line(written, records, how, said):
    with pytest.raises(SetBlockError, match=said):
        task_of_records(written(*records), **how)


def test_a_file_that_is_none(tmp_path, written):
    with pytest.raises(SetBlockError, match=r"nowhere\.jsonl: no such file"):
        task_of_records(tmp_path / "nowhere.jsonl")
    with pytest.raises(SetBlockError, match=r"own\.txt must end in one of \.jsonl, .*such as "):
        task_of_records(written("Hi", name="own.txt"))

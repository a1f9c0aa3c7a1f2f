"""Encoding: the tokens of a document are those that the model is given, and loss is where it belongs."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from data.conftest import CHATML, chat, spaced_tokenizer
from setblock.data.section import DataSection
from setblock.data.texts.encoding import Encoder, tokenizer_fingerprint
from setblock.data.texts.records import SourceRecord
from setblock.data.texts.shapes import shaped
from setblock.data.tokenizer import train_tokenizer
from setblock.decoding.answer.prompt import encode_prompt
from setblock.errors import SetBlockError

END = 0


def new_tokenizer() -> PreTrainedTokenizerBase:
    made = train_tokenizer([*TEXTS, "assistant\n\nA" * 50], vocab_size=300)
    assert len(made("\n\n").input_ids) == 1
    made.chat_template = CHATML
    return made


TOKENIZER = new_tokenizer()


def encode(
    *columns: dict[str, Any], tokenizer: PreTrainedTokenizerBase = TOKENIZER, **options: Any
) -> list[dict[str, Any]]:
    data = DataSection(source="a.jsonl", **options)
    encoder = Encoder(tokenizer, data.sources[0], data)
    records = (SourceRecord(f"a.jsonl, line {i + 1}", each) for i, each in enumerate(columns))
    return list(encoder.documents(*shaped(encoder.section, records)))


def learned(document: dict[str, Any]) -> str:
    ids = [token for token, flag in zip(document["token_ids"], document["carries_loss"], strict=True) if flag]
    return TOKENIZER.decode(ids)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(texts, texts)
def test_prompt_and_completion(prompt: str, completion: str) -> None:
    (document,) = encode({"prompt": prompt, "completion": completion}, special_tokens="keep")
    ids = [TOKENIZER(text).input_ids for text in (prompt, completion)]
    assert document["token_ids"] == [*ids[0], *ids[1], END]
    assert document["carries_loss"] == [False] * len(ids[0]) + [True] * (len(ids[1]) + 1)
    (document,) = encode({"prompt": prompt, "completion": completion}, special_tokens="keep", loss_on="all")
    assert all(document["carries_loss"])


@given(texts)
def test_text_carries_loss_all_over(text: str) -> None:
    (document,) = encode({"text": text}, special_tokens="keep")
    assert document["token_ids"] == [*TOKENIZER(text).input_ids, END]
    assert all(document["carries_loss"])


@given(st.lists(texts, min_size=2, max_size=5))
@example(["Hi", "\nHello"])  # the end of the prompt and the beginning of the answer would be one token, "\n\n"
def test_a_prompt_has_the_tokens_that_it_has_in_use(contents: list[str]) -> None:
    """Up to each answer a chat's tokens are those of the prompt alone, which is what a model will be given."""
    messages = chat(*contents)
    (document,) = encode({"messages": messages})
    assert TOKENIZER.decode(document["token_ids"]) == TOKENIZER.apply_chat_template(messages, tokenize=False)
    prompt = TOKENIZER.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    assert document["token_ids"][: len(prompt)] == prompt
    assert not any(document["carries_loss"][: len(prompt)])
    answers = "".join(message["content"] + "<|endoftext|>" for message in messages if message["role"] == "assistant")
    assert learned(document) == answers


@pytest.mark.parametrize("scheme", ["first", "always"])
@pytest.mark.parametrize("prompt", ["def f(", "Tom has", "a\n", "x "])
@pytest.mark.parametrize("completion", ["x):", " 12", "\nHello", ""])
def test_a_completion_continues_its_prompt(scheme: str, prompt: str, completion: str) -> None:
    """Also with tokenizers that put a space before any text: a document decodes to the prompt and what follows it."""
    tokenizer = spaced_tokenizer(scheme)
    (document,) = encode({"prompt": prompt, "completion": completion}, tokenizer=tokenizer)
    requested = encode_prompt(tokenizer, prompt, raw=True)
    assert document["token_ids"][: len(requested)] == requested
    assert tokenizer.decode(document["token_ids"][:-1]) == prompt + completion
    (document,) = encode(
        {"prompt": prompt + "</s>", "completion": completion}, tokenizer=tokenizer, special_tokens="spell"
    )
    assert tokenizer.decode(document["token_ids"][:-1]) == f"{prompt}</s>{completion}"
    assert document["token_ids"].count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_the_answer_of_a_chat_continues_its_prompt(scheme: str) -> None:
    tokenizer = spaced_tokenizer(scheme)
    tokenizer.chat_template = CHATML.replace("<|reserved_special_token_1|>", "T:")
    for contents in (("Tom", "has 12"), ("Tom", "\nhas"), ("a", "b", "c", "d")):
        messages = chat(*contents)
        (document,) = encode({"messages": messages}, tokenizer=tokenizer)
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        assert tokenizer.decode(document["token_ids"]) == tokenizer.decode(ids)
        requested = encode_prompt(tokenizer, messages[:1])
        assert document["token_ids"][: len(requested)] == requested


def test_many_records_are_encoded_in_order():
    documents = encode(*({"prompt": f"{i}", "completion": f" {i}"} for i in range(600)))
    assert [TOKENIZER.decode(d["token_ids"]) for d in documents] == [f"{i} {i}<|endoftext|>" for i in range(600)]
    assert [d["where"] for d in documents] == [f"a.jsonl, line {i + 1}" for i in range(600)]


def test_columns_of_other_names():
    (document,) = encode({"q": "a", "a": "b", "text": "c"}, prompt_column="q", completion_column="a")
    assert learned(document) == "b<|endoftext|>"
    (document,) = encode({"prompt": "a", "completion": "b", "content": "c"}, text_column="content")
    assert learned(document) == "c<|endoftext|>"
    (document,) = encode({"conversation": chat("a", "b")}, messages_column="conversation")
    assert learned(document) == "b<|endoftext|>"


@pytest.mark.parametrize(
    ("records", "options", "said"),
    [
        ([{"q": "a"}], {}, r"line 1: no messages, prompt and completion, or text among its columns \(q\); name them"),
        ([{"text": "a", "messages": []}], {}, "line 1: its columns hold messages as well as text; name the column"),
        ([{"text": "a"}, {"txt": "b"}], {}, "line 2: no column 'text' among txt"),
        ([{"text": "a"}, {"text": ["b"]}], {}, r"""line 2: column 'text' must hold text, not \["b"\]"""),
        ([{"prompt": "a", "completion": None}], {}, "line 1: column 'completion' must hold text, not null"),
        ([{"text": "a"}], {"text_column": "body"}, "line 1: no column 'body' among text"),
        ([{"messages": chat("a")}, {"messages": []}], {}, "line 2: messages must be a list of at least one message"),
        (
            [{"text": "a"}, {"text": "b<|endoftext|>c"}],
            {},
            "line 2: its text contains the special token '<.endoftext.>'",
        ),
        (
            [{"messages": chat("a", "<|reserved_special_token_1|>user\n")}],
            {},
            "line 1: its text contains the special tok",
        ),
    ],
)
def test_a_wrong_record_is_named(records, options, said):
    with pytest.raises(SetBlockError, match=f"^a.jsonl, {said}") as raised:
        encode(*records, **options)
    assert "\n" not in str(raised.value)


def test_text_that_spells_a_special_token():
    records = ({"text": "a"}, {"text": "b<|endoftext|>c"})
    kept = encode(*records, special_tokens="keep")
    assert [document["spells_special"] for document in kept] == [False, True]
    assert kept[1]["token_ids"].count(END) == 2  # the model reads the token, not its letters
    assert [document["spells_special"] for document in encode(*records, special_tokens="drop")] == [False, True]


def test_special_tokens_spelled_out_are_what_a_prompt_of_decoding_is():
    """Whatever the shape: the letters are learned, the tokens in the document are the template's and the last one."""
    for prompt in ("a<|endoftext|>b", "<|reserved_special_token_1|>user\n"):
        (document,) = encode({"messages": chat(prompt, "c<|endoftext|>d")}, special_tokens="spell")
        expected = encode_prompt(TOKENIZER, [{"role": "user", "content": prompt}])
        assert document["token_ids"][: len(expected)] == expected
        assert document["token_ids"].count(END) == 2
        assert learned(document) == "c<|endoftext|>d<|endoftext|>"
        (document,) = encode({"prompt": prompt, "completion": "c"}, special_tokens="spell")
        expected = encode_prompt(TOKENIZER, prompt, raw=True)
        assert document["token_ids"][: len(expected)] == expected
        assert document["token_ids"].count(END) == 1
        assert learned(document) == "c<|endoftext|>"
    for document, plain in zip(
        encode({"text": "a<|endoftext|>"}, {"text": "b"}, special_tokens="spell"), ("a<|endoftext|>", "b"), strict=True
    ):
        assert document["token_ids"] == [*TOKENIZER(plain, split_special_tokens=True).input_ids, END]


def test_equal_documents_share_a_bucket_and_others_spread():
    buckets = [document["bucket"] for document in encode(*({"text": f"{i % 500}"} for i in range(1000)))]
    assert buckets[:500] == buckets[500:]
    assert 0.4 < sum(bucket < 1 << 31 for bucket in buckets[:500]) / 500 < 0.6


def test_fingerprint_of_a_tokenizer():
    """The same for two that are the same; another where the vocabulary or the template is."""
    first, same, other = new_tokenizer(), new_tokenizer(), train_tokenizer(TEXTS[:2], vocab_size=290)
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(same) != tokenizer_fingerprint(other)
    same.chat_template = CHATML + "\n"
    assert tokenizer_fingerprint(first) != tokenizer_fingerprint(same)
    first("used", padding="max_length", max_length=9, truncation=True)
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(new_tokenizer())

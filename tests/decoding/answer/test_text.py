"""Text in and out: special tokens' names stay text, and no character is streamed before it is whole."""

import warnings
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from setblock.data.tokenizer import END_OF_TEXT, train_tokenizer
from setblock.decoding.answer.detokenize import AnswerText
from setblock.decoding.answer.prompt import encode_prompt
from setblock.errors import SetBlockError

BYTES = train_tokenizer(["Tom has 12 apples."], vocab_size=270)  # nearly every character is several tokens
RESERVED = "<|reserved_special_token_0|>"
SPECIAL = st.sampled_from([END_OF_TEXT, RESERVED, "<|", "|>", "<|endoftext", "Tom", " ", "\n", "é", "\U0001f44d"])


def pieces_of(token_ids: list[int], **stops: Any) -> list[str]:
    """What each token adds to the certain text; a last piece where there are no tokens."""
    answer, pieces = AnswerText(BYTES, **stops), []
    for token_id in token_ids[:-1]:
        answer.read([token_id])
        pieces.append(answer.take())
    answer.read(token_ids[-1:])
    return [*pieces, answer.take(final=True)]


@given(st.text(), st.data())
def test_pieces_add_up_to_the_whole(text: str, data: st.DataObject) -> None:
    """However the tokens arrive, no piece is taken back and no half character is shown."""
    token_ids = BYTES(text, split_special_tokens=True).input_ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8)))
    answer, pieces = AnswerText(BYTES), []
    for before, cut in pairwise([0, *cuts]):
        answer.read(token_ids[before:cut])
        pieces.append(answer.take())
        assert text.startswith("".join(pieces))
    answer.read(token_ids[max([0, *cuts]) :])
    pieces.append(answer.take(final=True))
    assert "".join(pieces) == text


@given(st.lists(st.integers(5, 269), max_size=30))
def test_pieces_add_up_for_tokens_that_are_no_valid_text(token_ids: list[int]) -> None:
    assert "".join(pieces_of(token_ids)) == BYTES.decode(token_ids)


@given(st.lists(st.integers(0, 5), max_size=30), st.data())
def test_a_text_does_not_depend_on_which_tokens_come_together(token_ids: list[int], data: st.DataObject) -> None:
    """Also where the tokenizer cleans up what is decoded at once: "a ." becomes "a."."""
    words = Tokenizer(WordPiece({word: number for number, word in enumerate("a ##b . ' n't ?".split())}, unk_token="?"))
    words.decoder = decoders.WordPiece(cleanup=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=True)
    together, apart = AnswerText(tokenizer), AnswerText(tokenizer)
    together.read(token_ids, final=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8)))
    for before, cut in pairwise([0, *cuts, len(token_ids)]):
        apart.read(token_ids[before:cut])
    apart.read([], final=True)
    assert apart.text == together.text


def test_token_ids_without_a_token_are_no_text() -> None:
    """A model may have more of them than its tokenizer has tokens."""
    first, *rest = BYTES("é", add_special_tokens=False).input_ids
    unknown = len(BYTES) + 7
    assert "".join(pieces_of([first, unknown, first, *rest, unknown])).endswith("é")
    assert "".join(pieces_of([unknown] * 3)) == ""


def test_half_a_character_is_held_back() -> None:
    token_ids = BYTES("Tom \U0001f44d!").input_ids
    pieces = pieces_of(token_ids)
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-2:] == ["\U0001f44d", "!"]
    assert pieces[-5:-2] == ["", "", ""]


@given(st.lists(SPECIAL, min_size=1).map("".join))
def test_special_token_text_stays_text(text: str) -> None:
    if not text.strip():
        return
    token_ids = encode_prompt(BYTES, text, raw=True)
    assert not set(token_ids) & set(BYTES.all_special_ids) | set(token_ids) & set(BYTES.added_tokens_decoder)
    assert BYTES.decode(token_ids) == text
    with_template = encode_prompt(BYTES, text)
    assert not set(with_template) & set(BYTES.added_tokens_decoder)
    assert BYTES.decode(with_template) == f"Question: {text}\nAnswer:"


def test_the_templates_own_special_tokens_are_tokens() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": f"two {END_OF_TEXT}"},
        {"role": "user", "content": f"three {END_OF_TEXT}"},
    ]
    token_ids = encode_prompt(BYTES, messages)
    assert token_ids.count(BYTES.eos_token_id) == 1  # the one that closes the assistant's turn
    expected = f"Question: one\nAnswer: two {END_OF_TEXT}{END_OF_TEXT}Question: three {END_OF_TEXT}\nAnswer:"
    assert BYTES.decode(token_ids) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # The system prompt goes in front of the last user message, as Mistral's templates have it
        (
            "{% set s = messages[0]['content'] %}{% for m in messages[1:] %}"
            "[{{ m['role'] }}]{% if loop.last %}{{ s }};{% endif %}{{ m['content'] }}{% endfor %}",
            f"[user]a[assistant]b{END_OF_TEXT}[user]sys;c",
        ),
        # The system prompt is dropped
        ("{% for m in messages[1:] %}[{{ m['content'] }}]{% endfor %}", f"[a][b{END_OF_TEXT}][c]"),
        # A message appears twice
        (
            "{{ messages[0]['content'] }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}",
            f"sys[sys][a][b{END_OF_TEXT}][c]",
        ),
    ],
)
def test_templates_may_move_drop_and_repeat_messages(
    template: str, expected: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.chat_template = template
    roles = ("system", "user", "assistant", "user")
    contents = ("sys", "a", f"b{END_OF_TEXT}", "c")
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model's chat template leaves out the system message")
        token_ids = encode_prompt(tokenizer, messages)
    assert not set(token_ids) & set(tokenizer.added_tokens_decoder)
    assert tokenizer.decode(token_ids) == expected


def test_a_text_without_special_names_is_tokenised_as_the_tokenizer_would() -> None:
    question = "Tom has 12 apples."
    rendered = f"Question: {question}\nAnswer:"
    assert encode_prompt(BYTES, question) == BYTES(rendered).input_ids
    assert encode_prompt(BYTES, question, raw=True) == BYTES(question).input_ids


@pytest.mark.parametrize("prompt", ["", "  \n", []])
def test_empty_prompts(prompt: str | list[dict[str, str]]) -> None:
    with pytest.raises(SetBlockError, match="prompt must not be empty"):
        encode_prompt(BYTES, prompt)


def test_messages_need_a_template(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = None
    assert encode_prompt(tokenizer, "plain") == tokenizer("plain").input_ids
    with pytest.raises(SetBlockError, match="chat messages need a tokenizer with a chat template"):
        encode_prompt(tokenizer, [{"role": "user", "content": "plain"}])

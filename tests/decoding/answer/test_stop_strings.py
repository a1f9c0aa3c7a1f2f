"""Stop strings: the answer ends before the earliest, whichever method and order reveal it, and none of it is ever shown."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from answers import ORDERS, InOrder, answers, reciting
from setblock.data.tokenizer import train_tokenizer
from setblock.decoding.answer.detokenize import AnswerText
from setblock.decoding.answer.generation import Generation
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate, stream
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

BYTES = train_tokenizer(["Tom has 12 apples."], vocab_size=270)  # nearly every character is several tokens
PROMPT = "Tom has"
TEXT = "12 apples — n\u00e9e \U0001f44d\U0001f3fd.\n\nThe apples"

WAYS: list[dict[str, Any]] = [
    {"method": "ntp"},
    {"method": "sbd", "sampler": EntropyBounded(1e9), "block_size": 8},
    {"method": "sbd", "sampler": EntropyBounded(1e9), "block_size": 5},
    *({"method": "sbd", "sampler": InOrder(order), "block_size": 8} for order in ORDERS.values()),
    {"method": "exact", "sampler": EntropyBounded(1e9), "block_size": 7},
    {"method": "exact", "sampler": InOrder(ORDERS["middle first"]), "block_size": 8},
]


@pytest.fixture(scope="module")
def recital() -> SBDModel:
    token_ids = BYTES(TEXT).input_ids
    assert len(token_ids) > 24
    return reciting(BYTES, [*token_ids, BYTES.eos_token_id], after=len(BYTES(PROMPT).input_ids))


def first_whole(token_ids: list[int], stop: str) -> int:
    """How many tokens have `stop` in their text."""
    return next(n for n in range(len(token_ids) + 1) if stop in BYTES.decode(token_ids[:n]))


def test_the_model_recites(recital: SBDModel) -> None:
    for way in WAYS:
        generation = generate(recital, PROMPT, settings=DecodingSettings(**way, max_new_tokens=60), raw=True)
        assert generation.text == TEXT
        assert generation.finish_reason == "stop"


CUTS: list[tuple[str | tuple[str, ...], str]] = [
    ("1", ""),  # at once
    ("12 a", ""),
    ("ples", "12 ap"),
    ("\u2014", "12 apples "),  # a character of three tokens
    (" n\u00e9", "12 apples \u2014"),
    ("\u00e9", "12 apples \u2014 n"),
    ("\U0001f44d", "12 apples \u2014 n\u00e9e "),
    ("\U0001f3fd", "12 apples \u2014 n\u00e9e \U0001f44d"),
    ("\n\n", "12 apples \u2014 n\u00e9e \U0001f44d\U0001f3fd."),
    ("The apples", TEXT.removesuffix("The apples")),  # with the last token
    (("apples.", "apple "), TEXT),  # never
    (("The", "\n", "apples\n"), "12 apples \u2014 n\u00e9e \U0001f44d\U0001f3fd."),
    (("les", "apples"), "12 "),  # one inside the other, whole with the same token
    (
        ("apples \u2014!", "ples \u2014 n\u00e9e!", "les"),
        "12 app",
    ),  # longer ones begin further left but do not come
    (TEXT, ""),
    (TEXT + "!", TEXT),
]
"""Stop strings, and the text that is left."""


@pytest.fixture(scope="module")
def stopped(recital: SBDModel) -> list[list[tuple[DecodingSettings, Generation]]]:
    """For each of `CUTS`, the answers in all ways; of one batch, as each pass takes about as long for few rows as for many."""
    settings = [DecodingSettings(**way, max_new_tokens=60, stop=stop) for stop, _ in CUTS for way in WAYS]
    found = answers(recital, [BYTES(PROMPT).input_ids] * len(settings), settings)
    rows = list(zip(settings, found, strict=True))
    return [rows[place : place + len(WAYS)] for place in range(0, len(rows), len(WAYS))]


@pytest.mark.parametrize("place", range(len(CUTS)))
def test_the_answer_ends_before_a_stop_string(
    stopped: list[list[tuple[DecodingSettings, Generation]]], place: int
) -> None:
    token_ids = BYTES(TEXT).input_ids
    _, cut = CUTS[place]
    for each, generation in stopped[place]:
        assert generation.text == cut
        assert generation.finish_reason == "stop"
        if cut == TEXT:
            assert generation.token_ids == [*token_ids, BYTES.eos_token_id]
        else:
            whole = min(first_whole(token_ids, text) for text in each.stop if text in TEXT)
            assert generation.token_ids == token_ids[:whole]
        assert len(generation.revealed_by) == len(generation.entropy) == generation.num_tokens
        assert max(generation.revealed_by) <= generation.passes.decoding


@pytest.mark.parametrize("kind", ["bytes", "bytes as tokens", "characters"])
def test_a_replacement_character_is_a_character(kind: str) -> None:
    """Half a character is decoded to U+FFFD, too. That of the text is whole with its last byte, and half of another is not."""
    if kind == "bytes":
        tokenizer: Any = BYTES
    else:  # as SentencePiece has it: bytes of what it doesn't know, or the character
        text = " \ufffdab" if kind == "characters" else " ab"
        vocabulary = {each: place for place, each in enumerate(dict.fromkeys(text))}
        vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)} | {
            "<unk>": len(vocabulary) + 256
        }
        made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    stop, after = tokenizer("\ufffd").input_ids, tokenizer("\uf8ff").input_ids  # the same first bytes, but the last
    assert tokenizer.decode(after) == "\uf8ff"
    text = AnswerText(tokenizer, stop=("\ufffd",))
    text.read([*tokenizer("a").input_ids, *after[:2]])
    assert text.stop_length is None
    text.read([*after[2:], *stop[:-1]])
    assert (text.text, text.stop_length) == ("a\uf8ff", None)
    text.read(stop[-1:])
    assert (text.text, text.stop_length) == ("a\uf8ff", 1 + len(after) + len(stop))
    streamed = AnswerText(tokenizer)
    streamed.read(stop)
    assert streamed.take() == "\ufffd"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "stop", ["les", "\n\nThe a", "apples \u2014 n\u00e9x", (" n\u00e9e \U0001f3fd", "\u2014 n"), "\U0001f44d."]
)
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_what_is_streamed_is_never_taken_back(recital: SBDModel, way: int, stop: Any) -> None:
    settings = DecodingSettings(**WAYS[way], max_new_tokens=60, stop=stop)
    chunks = list(stream(recital, PROMPT, settings=settings, raw=True))
    generation = chunks[-1].generation
    assert generation is not None
    assert "".join(chunk.text for chunk in chunks) == generation.text
    assert not any(text in generation.text for text in settings.stop)
    assert "\ufffd" not in generation.text
    # The loop ends with the pass that completes the stop string
    assert len(chunks) == generation.num_forwards
    assert [chunk.generation is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_min_new_tokens_delays_a_stop_string(recital: SBDModel, way: int) -> None:
    """`apples` comes twice; the first time too early, unless its last token is the first that counts."""
    token_ids = BYTES(TEXT).input_ids
    first = first_whole(token_ids, "apples")
    for least, text, number in (
        (first - 1, "12 ", first),
        (first, TEXT.removesuffix("apples"), len(token_ids)),
        (len(token_ids) - 1, TEXT.removesuffix("apples"), len(token_ids)),
        (len(token_ids), TEXT, len(token_ids) + 1),
    ):
        settings = DecodingSettings(**WAYS[way], max_new_tokens=60, stop="apples", min_new_tokens=least)
        chunks = list(stream(recital, PROMPT, settings=settings, raw=True))
        generation = chunks[-1].generation
        assert generation is not None
        assert (generation.text, generation.num_tokens) == (text, number)
        assert "".join(chunk.text for chunk in chunks) == text


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_an_end_of_text_before_the_stop_string_and_the_limit(recital: SBDModel, way: int) -> None:
    """The end-of-text stands inside what would be the stop string; and the limit right before its last token, and on it."""
    prompt, token_ids = BYTES(PROMPT).input_ids, BYTES(TEXT).input_ids
    end = first_whole(token_ids, "12 ap")
    sbd = reciting(BYTES, [*token_ids[:end], BYTES.eos_token_id, *token_ids[end:]], after=len(prompt))
    settings = DecodingSettings(**WAYS[way], max_new_tokens=40, stop="apples")
    generation = answers(sbd, [prompt], [settings])[0]
    assert generation.text == "12 ap"
    assert generation.token_ids == [*token_ids[:end], BYTES.eos_token_id]

    whole = first_whole(token_ids, "12 apples")
    for limit, text, reason in ((whole - 1, BYTES.decode(token_ids[: whole - 1]), "length"), (whole, "12 ", "stop")):
        settings = DecodingSettings(**WAYS[way], max_new_tokens=limit, stop="apples")
        generation = answers(recital, [prompt], [settings])[0]
        assert (generation.text, generation.finish_reason, generation.num_tokens) == (text, reason, limit)


def test_rows_stop_by_themselves(recital: SBDModel) -> None:
    """A stop string ends its own row only, with the pass that completes it."""
    prompt = BYTES(PROMPT).input_ids
    stops: list[tuple[str, ...]] = [("les",), (), ("\n",), ("12",), ("zzz", "e")]
    rows = [DecodingSettings(**way, max_new_tokens=60, stop=stop) for way, stop in itertools.product(WAYS[:4], stops)]
    together = answers(recital, [prompt] * len(rows), rows)
    for settings, generation in zip(rows, together, strict=True):
        alone = answers(recital, [prompt], [settings])[0]
        assert (generation.text, generation.token_ids) == (alone.text, alone.token_ids)
        assert (generation.passes, generation.revealed_by) == (alone.passes, alone.revealed_by)


# A small alphabet, so that stop strings come, nearly come, and overlap
LETTERS = st.text(alphabet="ab\u00e9", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), max_size=3)


def expected(token_ids: list[int], stops: list[str], least: int) -> tuple[str, int | None]:
    """The text, and how many tokens it took to complete a stop string. A text counts when its last character is whole; then all
    that was not there when `least` tokens were is looked through, from the left."""
    before = ""
    for n in range(1, len(token_ids) + 1):
        text = BYTES.decode(token_ids[:n])
        if text.endswith("\ufffd") and n < len(token_ids):
            continue
        if n > least:
            places = [
                place
                for stop in stops
                for place in range(len(text))
                if text.startswith(stop, place) and place + len(stop) > len(before)
            ]
            if places:
                return text[: min(places)], n
        before = text
    return BYTES.decode(token_ids), None


def longest_beginning(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@given(LETTERS, STOPS, st.integers(0, 8), st.data())
def test_the_text_and_its_pieces(text: str, stops: list[str], least: int, data: st.DataObject) -> None:
    """Whatever the number of tokens that come at once."""
    token_ids = BYTES(text).input_ids
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6)))
    final_text, stop_length = expected(token_ids, stops, least)
    answer, shown = AnswerText(BYTES, stop=stops, min_new_tokens=least), ""
    for before, cut in itertools.pairwise([0, *cuts]):
        answer.read(token_ids[before:cut])
        if data.draw(st.booleans()):
            continue
        shown += answer.take()
        assert final_text.startswith(shown)
        if stop_length is None or cut < stop_length:
            # Held back is what may begin a stop string, and nothing else
            so_far = BYTES.decode(token_ids[:cut]).rstrip("\ufffd")
            assert shown == so_far[: len(so_far) - longest_beginning(so_far, stops)]
    answer.read(token_ids[max([0, *cuts]) :])
    shown += answer.take(final=True)
    assert shown == answer.text == final_text
    assert answer.stop_length == stop_length


def test_a_stop_string_in_a_token_that_ends_with_half_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    """Some tokenizers have such tokens. The stop string is seen with the next token, or when no more come."""
    half = BYTES("\u00e9").input_ids[0]
    stop = BYTES("a").input_ids

    class Joined:
        """Decodes 1000 as `a` and half a character."""

        def decode(self, token_ids: list[int], **options: Any) -> str:
            parts = [[*stop, half] if token_id == 1000 else [token_id] for token_id in token_ids]
            text = BYTES.decode([token_id for part in parts for token_id in part], **options)
            assert isinstance(text, str)
            return text

        def convert_ids_to_tokens(self, token_ids: list[int]) -> list[str]:
            return [BYTES.convert_ids_to_tokens(half if token_id == 1000 else token_id) for token_id in token_ids]

    for token_ids, length in (([1000], 1), ([half + 1, 1000], 2), ([1000, *BYTES("b").input_ids], 2)):
        answer = AnswerText(Joined(), stop=["a"])  # type: ignore[arg-type]
        answer.read(token_ids[:1])
        assert answer.take() == ""
        answer.read(token_ids[1:], final=True)
        assert answer.stop_length == length
        answer.take()
        assert "a" not in answer.text


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_stop_string_with_half_a_character_at_the_limit(recital: SBDModel, way: int) -> None:
    """The replacement character stands for the half that came. Only at the end is it known that no more will come."""
    token_ids = BYTES(TEXT).input_ids
    limit = first_whole(token_ids, "\ufffd")
    settings = DecodingSettings(**WAYS[way], max_new_tokens=limit, stop=" \ufffd")
    rows = [settings, replace(settings, max_new_tokens=60)]
    generation, longer = answers(recital, [BYTES(PROMPT).input_ids] * 2, rows)
    assert generation.text == "12 apples"
    assert generation.finish_reason == "stop"
    assert longer.text == TEXT


def test_stop_strings_after_a_sampler_of_any_kind(recital: SBDModel) -> None:
    """Several stop strings in one block: the earliest in the text, though a later one was revealed first."""
    samplers: list[Sampler] = [InOrder(order) for order in ORDERS.values()]
    for sampler in samplers:
        settings = DecodingSettings(method="sbd", sampler=sampler, block_size=8, max_new_tokens=8, stop=("les", "p"))
        assert generate(recital, PROMPT, settings=settings, raw=True).text == "12 a"

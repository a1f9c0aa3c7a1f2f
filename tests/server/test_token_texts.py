"""Single tokens as text and bytes, of tokenizers that write them in different ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from setblock.data.tokenizer import train_tokenizer
from setblock.server.api.token_texts import TokenTexts


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2's: words with a mark for the space, and bytes for what it has no token for."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "T", "o", "m", "▁T", "é"]
    ids = {token: number for number, token in enumerate(vocabulary)}
    made = Tokenizer(models.BPE(ids, [("▁", "T")], byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


BYTE_LEVEL = train_tokenizer(["Tom has 12 apples."], vocab_size=270)
SENTENCEPIECE = sentencepiece()
TOKENIZERS = {"byte level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}
TEXTS = st.text("Tom é\U0001f44d\n中\x00", min_size=1, max_size=12)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
def test_bytes_add_up_and_offsets_are_places_in_the_text(name: str, text: str) -> None:
    tokenizer: PreTrainedTokenizerBase = TOKENIZERS[name]
    texts, ids = TokenTexts(tokenizer), tokenizer(text, add_special_tokens=False).input_ids
    written = b"".join(map(texts.bytes, ids)).decode()
    assert written == (" " if name == "sentencepiece" else "") + text
    shown = tokenizer.decode(ids)
    for limit in (len(shown), len(shown) // 2):
        offsets = texts.offsets(ids, shown[:limit])
        assert offsets == sorted(offsets)
        assert all(0 <= offset <= limit for offset in offsets)
    for place, (token_id, offset) in enumerate(zip(ids, texts.offsets(ids, shown), strict=True)):
        own = texts.text(token_id)
        if "\ufffd" not in own:
            assert shown[offset:].startswith(own.lstrip() if place == 0 else own)


@given(st.lists(st.integers(5, 269), max_size=30))
def test_tokens_that_are_no_valid_text_have_bytes_too(token_ids: list[int]) -> None:
    texts = TokenTexts(BYTE_LEVEL)
    assert b"".join(map(texts.bytes, token_ids)).decode(errors="replace") == BYTE_LEVEL.decode(token_ids)
    shown = BYTE_LEVEL.decode(token_ids)
    assert all(
        shown[place:].startswith(texts.text(each))
        for each, place in zip(token_ids, texts.offsets(token_ids, shown), strict=True)
        if "\ufffd" not in texts.text(each)
    )


@pytest.mark.parametrize("name", TOKENIZERS)
def test_different_tokens_have_different_names(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts, ids = TokenTexts(tokenizer), range(len(tokenizer))
    names = texts.names(ids)
    assert len({*names}) == len(ids)
    assert texts.names(tokenizer.convert_tokens_to_ids(["T"])) == ["T"]
    if name == "sentencepiece":  # the byte of a letter, beside the letter
        both = tokenizer.convert_tokens_to_ids(["T", "<0x54>", "<0xE4>", "▁T"])
        assert texts.names(both) == ["T", f"token_id:{both[1]}", "bytes:\\xe4", " T"]
    assert texts.bytes(len(tokenizer) + 7) == b""  # models have ids that their tokenizers have not
    assert texts.text(tokenizer.eos_token_id) == tokenizer.eos_token

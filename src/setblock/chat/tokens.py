"""The encoding of what a chat template wrote, and of the prompts of decoding. Special tokens that a user's text spells
are encoded as plain text.

Some tokenizers encode a text differently at its beginning (with a space before it), so that pieces of a text, each
encoded alone, decode to another text than the whole.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.guard import left_out
from setblock.chat.messages import chat_of
from setblock.chat.special import Segment, held_apart
from setblock.chat.template import adapted, form_of, render
from setblock.errors import SetBlockError, warn


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Any,
    tools: Any = None,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a chat's prompt; `template_kwargs` are the template's further variables. Raise
    `SetBlockError` if it is no chat, or the chat template refuses it or leaves out a part of it. If that part is a
    system message or the text of an earlier answer, only warn."""
    chat = adapted(tokenizer, chat_of(messages, tools))
    apart, marks = held_apart(tokenizer, chat)
    written = render(tokenizer, apart, prompt=True, template_kwargs=template_kwargs).text
    for role, is_content, what in left_out(chat, marks.removed(written), form_of(tokenizer, chat)):
        if role == "system":
            warn("the model's chat template leaves out the system message")
        elif role == "assistant" and is_content:  # some write a call without the text in front of it
            warn(f"the model's chat template leaves out {what}")
        else:
            raise SetBlockError(f"the chat template leaves out {what}: leave it out, or use another chat template")
    return encode_segments(tokenizer, marks.segments(written))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of a text to continue: with what the tokenizer puts before any text, and nothing behind
    it."""
    return [*beginning(tokenizer), *tokenise(tokenizer, [text], letters=True)[0]]


def beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that the tokenizer puts before any text: a beginning-of-text token, or none."""
    ids: list[int] = tokenizer("").input_ids
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and ids[-1] != tokenizer.bos_token_id else ids


def tokenise(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, letters: bool = False) -> list[list[int]]:
    """Return the token ids of texts, each encoded separately without special tokens around it."""
    if not texts:
        return []
    return list(tokenizer(list(texts), add_special_tokens=False, split_special_tokens=letters, verbose=False).input_ids)


def encode_segments(
    tokenizer: PreTrainedTokenizerBase, segments: Sequence[Segment], *, inside: bool = False
) -> list[int]:
    """Return the token ids of a text's segments, which are `inside` it or at its beginning. Raise `SetBlockError` if
    the tokenizer makes a special token of plain text."""
    ids: list[int] = []
    for place, (text, letters) in enumerate(segments):
        is_first = place == 0 and not inside
        found = (
            tokenise(tokenizer, [text], letters=letters)[0] if is_first else continued(tokenizer, text, letters=letters)
        )
        if letters and {*found} & {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}:
            raise SetBlockError(f"the tokenizer can't write the special token {text!r} as letters: leave it out")
        ids += found
    return ids


def continued(tokenizer: PreTrainedTokenizerBase, text: str, *, letters: bool = False) -> list[int]:
    """Return the token ids of a text that follows another, without the tokens that the tokenizer puts before any
    text."""
    (alone,) = tokenise(tokenizer, [text], letters=letters)
    (twice,) = tokenise(tokenizer, ["a"])
    if tokenizer.decode([*twice, *twice]) == "aa":  # it puts nothing there
        return alone
    for before in ("\n", "a", "."):
        first, both = tokenise(tokenizer, [before, before + text], letters=letters)
        if both[: len(first)] == first:
            return both[len(first) :]
    return alone


def as_decoded(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], alone: list[list[int]], whole: list[int]
) -> list[list[int]]:
    """Return the tokens of each of a text's pieces as in decoding, where a prompt is encoded before its answer exists.

    For most tokenizers these are the tokens of each piece `alone`, and joined they are the `whole` text's. If the
    tokenizer encodes a piece differently at a beginning, the whole text's tokens are cut between pieces, where
    possible. If a token would cross the end of a prompt (an answer that begins with a line break, after a prompt that
    ends in one), the pieces' own tokens are right, if they decode to the same text. Raise `SetBlockError` if neither
    does.
    """
    if [token for part in alone for token in part] == whole:
        return alone
    beginnings = tokenise(tokenizer, list(accumulate(texts)))
    if all(whole[: len(each)] == each for each in beginnings):
        return [whole[a:b] for a, b in pairwise([0, *map(len, beginnings)])]
    expected = tokenizer.decode(whole)
    for parts in (alone, [alone[0], *(continued(tokenizer, text) for text in texts[1:])]):
        if tokenizer.decode([token for part in parts for token in part]) == expected:
            return parts
    raise SetBlockError(
        "the tokenizer joins the end of a prompt and the beginning of its answer in one token, and writes the answer "
        "differently alone: end the prompt elsewhere, or set data.loss_on: all"
    )

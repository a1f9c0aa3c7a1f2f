"""Define documents: token sequences with marks for the tokens that carry loss.

Knows how text becomes a document. Knows nothing of rows, blocks or noise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Document:
    """Hold one sequence to train on.

    `token_ids` and `carries_loss` have the same length; `carries_loss[i]` says whether token i is a target. Tokens of a
    prompt are not. Tokens of a completion are, including its end-of-text.
    """

    token_ids: Sequence[int]
    carries_loss: Sequence[bool]

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.carries_loss)

    def __len__(self) -> int:
        return len(self.token_ids)


def encode_pairs(tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Encode (prompt, completion) texts as documents. The completion and its end-of-text token carry loss.

    The two texts are tokenised separately, as in decoding, where a prompt ends before the answer.
    """
    pairs = iter(pairs)
    while chunk := list(islice(pairs, 1024)):
        prompts, completions = zip(*chunk, strict=True)
        for prompt, completion in zip(
            tokenizer(list(prompts), add_special_tokens=True).input_ids,
            tokenizer(list(completions), add_special_tokens=False).input_ids,
            strict=True,
        ):
            closed = [*completion, tokenizer.eos_token_id]
            yield Document([*prompt, *closed], [False] * len(prompt) + [True] * len(closed))

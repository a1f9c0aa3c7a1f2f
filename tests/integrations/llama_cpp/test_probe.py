"""The start-up probe finds out whose cells a token sees, whichever of its sequences that is."""

from collections.abc import Sequence

import pytest
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.library import ModelFile
from setblock.integrations.llama_cpp.runner import PROBED_SEQUENCES, Context, Fed, own_sequence

from .conftest import EXACT, Both, lengths


class Reordered(Context):
    """As if llama.cpp took another of a token's sequences for its own."""

    def logits(self, tokens: Sequence[Fed], *, is_causal: bool) -> Tensor:
        return super().logits(
            [Fed(t.token_id, t.position, self.order(t.sequences), t.is_wanted) for t in tokens], is_causal=is_causal
        )

    def order(self, sequences: Sequence[int]) -> Sequence[int]:
        return sequences[::-1]


class Unordered(Reordered):
    """As if the own sequence were another one where there are many."""

    def order(self, sequences: Sequence[int]) -> Sequence[int]:
        return sequences if len(sequences) < 20 else sequences[::-1]


class Causal(Context):
    """A model whose attention is causal, whatever is asked for."""

    def logits(self, tokens: Sequence[Fed], *, is_causal: bool) -> Tensor:
        return super().logits(tokens, is_causal=True)


@pytest.mark.parametrize(("kind", "own"), [(Context, -1), (Reordered, 0), (Unordered, None)])
def test_it_finds_the_own_sequence(kind: type[Context], own: int | None, both: Both) -> None:
    _, llama = both
    context = kind(ModelFile(llama.path, EXACT), EXACT, cells=1, sequences=PROBED_SEQUENCES)
    assert own_sequence(context, vocab_size=llama.vocab_size) == own
    assert lengths(context) == [0] * PROBED_SEQUENCES


def test_causal_attention_alone_is_refused(both: Both) -> None:
    _, llama = both
    context = Causal(ModelFile(llama.path, EXACT), EXACT, cells=1, sequences=PROBED_SEQUENCES)
    with pytest.raises(SetBlockError, match="only causal attention"):
        own_sequence(context, vocab_size=llama.vocab_size)

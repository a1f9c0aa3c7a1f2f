"""Passes of llama.cpp give what PyTorch gives: every kind of pass, family, and way to commit."""

from typing import Any

import pytest
import torch

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.library import ModelFile
from setblock.integrations.llama_cpp.runner import Context, LlamaRunner
from setblock.model.probe.agreement import BATCH, CAPACITY, DisagreementError, Expected, check_decoding

from .conftest import EXACT, Both, Pair

pytestmark = pytest.mark.usefixtures("longest_drafts")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "llama, linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "llama, tied": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"num_hidden_layers": 4},
    "gemma3_text": {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    "phi3": {},
}


def run(both: Both, context: Context, own: int | None) -> None:
    """Raises DisagreementError where a pass is not as PyTorch's."""
    sbd, _ = both
    runner = LlamaRunner(context, own=own, rows=BATCH)
    runner.place((), range(BATCH))
    with torch.inference_mode():
        check_decoding(runner, Expected(sbd.model))


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, pair: Pair) -> None:
    sbd, llama = pair(name.split(",")[0], **FAMILIES[name])
    runner = llama.runner(pages=BATCH, page_tokens=CAPACITY, rows=BATCH)
    runner.place([[row] for row in range(BATCH)], range(BATCH))
    assert runner.fuses_commit
    with torch.inference_mode():
        check_decoding(runner, Expected(sbd.model))


def context_of(both: Both, *, sequences: int, **options: int) -> Context:
    _, llama = both
    return Context(ModelFile(llama.path, EXACT), EXACT, cells=BATCH * CAPACITY, sequences=sequences)


@pytest.mark.parametrize(
    "sequences", [BATCH, 4 * BATCH, 6 * BATCH, 64], ids=["no helpers", "a few", "for some", "enough"]
)
def test_any_number_of_sequences_will_do(sequences: int, both: Both) -> None:
    """Where sequences run short, commits are passes of their own within the call."""
    run(both, context_of(both, sequences=sequences), own=-1)


def test_the_wrong_own_sequence_is_seen(both: Both) -> None:
    with pytest.raises(DisagreementError, match="commits a block"):
        run(both, context_of(both, sequences=64), own=0)


def test_small_passes(both: Both) -> None:
    """A pass of llama.cpp that has room for one block alone."""
    context = context_of(both, sequences=64)
    context.most_tokens = 9
    run(both, context, own=-1)


def test_more_rows_than_sequences_are_refused_in_a_line(both: Both) -> None:
    with pytest.raises(SetBlockError, match="at most 64 requests at once, not 65"):
        LlamaRunner(context_of(both, sequences=64), own=-1, rows=65)

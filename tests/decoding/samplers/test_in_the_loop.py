"""Samplers in the decoding loop, where a batch's rows have different ones."""

import pytest
from transformers import PreTrainedTokenizerBase

from answers import answers
from decoding.samplers.cases import KINDS
from families import MODES, tiny_sbd
from setblock.decoding.settings.table import DecodingSettings

pytestmark = pytest.mark.usefixtures("longest_drafts")

# Random weights are unsure of everything: where the defaults would reveal one token a pass, looser ones that don't
LOOSER = {
    "entropy-bounded": {"gamma": 9.0},
    "entropy-prefix": {"gamma": 9.0},
    "entropy-threshold": {"threshold": 3.0},
    "confidence-threshold": {"threshold": 0.1},
    "factor": {"factor": 2.8},
    "confident-prefix": {"threshold": 0.1},
    "adaptive-confidence": {"lower": 0.05, "upper": 0.1},
    "distance-penalty": {"threshold": 3.0},
    "spaced": {"gamma": 9.0},
    "klass": {"threshold": 0.05, "max_kl": 1.0, "passes": 1},
    "credit-decoding": {"threshold": 0.1, "strength": 2.0},
}


@pytest.mark.parametrize(("mode", "size"), list(zip(MODES, (8, 5, 8), strict=True)))
def test_a_row_gets_in_a_batch_what_it_gets_alone(
    mode: str, size: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = ()
    settings = [
        DecodingSettings(
            sampler=KINDS[name](**LOOSER.get(name, {})),
            method="exact" if row % 4 == 3 else "sbd",
            block_size=size,
            max_new_tokens=21,
        )
        for row, name in enumerate(KINDS)
    ]
    rows = [prompts[row % len(prompts)] for row in range(len(settings))]
    for row, together in enumerate(answers(sbd, rows, settings)):
        (alone,) = answers(sbd, [rows[row]], [settings[row]])
        assert together.token_ids == alone.token_ids, settings[row].sampler
        assert together.passes == alone.passes
        assert together.revealed_by == alone.revealed_by
        assert alone.num_tokens == 21

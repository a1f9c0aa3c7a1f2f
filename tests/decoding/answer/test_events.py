"""The raw events of a stream: whoever replays them ends with the answer."""

import math

import pytest
from transformers import PreTrainedTokenizerBase

from families import MODES, tiny_sbd
from setblock.decoding.samplers import ConfidenceThreshold, EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import stream

pytestmark = pytest.mark.usefixtures("longest_drafts")

SETTINGS = {
    "blocks": DecodingSettings(method="sbd", sampler=EntropyBounded(4.0), block_size=6, max_new_tokens=25),
    "blocks by confidence": DecodingSettings(
        method="sbd", sampler=ConfidenceThreshold(0.3), block_size=6, max_new_tokens=25
    ),
    "exact": DecodingSettings(method="exact", sampler=EntropyBounded(math.inf), block_size=6, max_new_tokens=25),
    "ntp": DecodingSettings(method="ntp", max_new_tokens=9),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
def test_events_replayed_give_the_answer(name: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = ()
    chunks = list(stream(sbd, "How many apples does Tom have?", settings=SETTINGS[name]))
    written: dict[int, int] = {}
    corrections = 0
    for number, chunk in enumerate(chunks):
        event = chunk.event
        assert event.number == number
        if event.corrected is not None:
            corrections += 1
            written = {index: token for index, token in written.items() if index < event.corrected.index}
            written[event.corrected.index] = event.corrected.token_id
        indices = [each.index for each in event.revealed]
        assert indices == sorted(indices)
        assert not set(indices) & set(written)  # nothing is revealed twice
        written |= {each.index: each.token_id for each in event.revealed}
        assert all(0 <= each.entropy <= math.log(300) + 1e-3 for each in event.revealed)
    generation = chunks[-1].generation
    assert generation is not None
    assert [written[index] for index in range(len(written))] == generation.token_ids
    kinds = [chunk.event.kind for chunk in chunks]
    passes = generation.passes
    assert [kinds.count(kind) for kind in ("prefill", "block", "commit")] == [
        passes.prefill,
        passes.block,
        passes.commit,
    ]  # type: ignore[comparison-overlap]
    assert (corrections > 0) == (name == "exact")

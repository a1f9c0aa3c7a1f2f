"""What would change the output, and can't be done in blocks, is refused by name."""

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    MinNewTokensLengthLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)

from setblock.decoding.samplers import EntropyBounded
from setblock.integrations.transformers import sbd_generate


class Doubler(LogitsProcessor):
    """Somebody's own."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * 2


@pytest.mark.parametrize(
    "own",
    [
        Doubler(),
        TemperatureLogitsWarper(0.5),
        MinNewTokensLengthLogitsProcessor(1, 9, eos_token_id=0),
        RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=4),
    ],
    ids=lambda processor: type(processor).__name__,
)
@pytest.mark.filterwarnings("ignore:A custom logits processor")
def test_ones_own_processor_is_refused(
    own: Any, in_blocks: Any, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """Also one of a type that Transformers makes from the config, with another value."""
    requested = {"logits_processor": LogitsProcessorList([own]), "repetition_penalty": 1.2}
    message = f"logits_processor {type(own).__name__} can't be applied: it reads the text to the left"
    with pytest.raises(ValueError, match=message):
        in_blocks(torch.tensor(prompts[:1]), **requested)
    with pytest.raises(ValueError, match=message):
        model.generate(torch.tensor(prompts[:1]), **requested, max_new_tokens=3, custom_generate=sbd_generate)


def test_ones_own_processor_twice_is_refused(in_blocks: Any, prompts: list[list[int]]) -> None:
    """Transformers applies its own as well, and so divides by the temperature twice."""
    own = LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    in_blocks(torch.tensor(prompts[:1]), do_sample=True, temperature=0.5)
    with pytest.raises(ValueError, match="logits_processor TemperatureLogitsWarper can't be applied"):
        in_blocks(torch.tensor(prompts[:1]), logits_processor=own, do_sample=True, temperature=0.5)


def test_ones_own_criterion_is_refused(in_blocks: Any, prompts: list[list[int]]) -> None:
    criteria = StoppingCriteriaList([MaxTimeCriteria(1.0)])
    with pytest.raises(ValueError, match="stopping_criteria MaxTimeCriteria can't be applied: it is made to be asked"):
        in_blocks(torch.tensor(prompts[:1]), stopping_criteria=criteria)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"num_beams": 2}, "num_beams=2 is not supported in set block decoding"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3 is not supported"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5 is not supported"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6 is not supported"),
        ({"do_sample": True, "typical_p": 0.9}, "typical_p=0.9 is not supported"),
        ({"max_time": 2.0}, "max_time=2.0 is not supported"),
        ({"forced_eos_token_id": 0}, "forced_eos_token_id=0 is not supported"),
        ({"begin_suppress_tokens": [4]}, "begin_suppress_tokens=.4. is not supported"),
        ({"remove_invalid_values": True}, "remove_invalid_values=True is not supported"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 is not supported"),
        ({"cache_implementation": "paged"}, "'paged' is continuous batching"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores=True.*outputs of several passes"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"sequence_bias": {(4, 5): 1.0}}, r"sequence_bias must be of single tokens.* not of \[4, 5\]"),
        ({"bad_words_ids": [[4, 5]]}, r"bad_words_ids must be of single tokens.* not of \[4, 5\]"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [1]}, "prefix_allowed_tokens_fn is not supported"),
        ({"assistant_model": object()}, "assistant_model is not supported"),
        ({"inputs_embeds": torch.zeros(1, 9, 32)}, "inputs_embeds is not supported"),
        ({"position_ids": torch.arange(9)[None] + 3}, "position_ids must be those that follow"),
        ({"sampler": "best"}, "sampler must be one of confidence-threshold, .* not 'best'"),
        ({"sampler": EntropyBounded(), "gamma": 1.0}, "gamma must be set in the sampler"),
        ({"sampler": "fixed-count", "gamma": 1.0}, "sampler fixed-count has no 'gamma'"),
        ({"gamma": -1.0}, "gamma must be at least 0"),
        ({"method": "fast"}, "method must be one of"),
        ({"max_new_tokens": 500}, "max_new_tokens must be at most 119 after a prompt of 9 tokens"),
        ({"gama": 0.1}, "gama"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
@pytest.mark.filterwarnings("ignore:The following generation flags")
def test_what_would_change_the_output_is_refused_by_name(
    requested: dict[str, Any], message: str, in_blocks: Any, prompts: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match=message):
        in_blocks(torch.tensor(prompts[:1]), **requested)

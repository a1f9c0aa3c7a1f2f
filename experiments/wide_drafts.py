"""Measure what exact mode would gain from drafting for every possible outcome of a check in one wider pass (TiDAR's
idea).

    python experiments/wide_drafts.py --limit 200

Exact mode checks a draft and drafts the block after it in one pass of 2k tokens. Where the check finds a mistake, the new block
is lost, and one more pass drafts again from the corrected token. A pass with k blocks of masks next to the draft, one for each
length that may be accepted, never loses its block: k + k*k tokens. It drafts before the corrected token is known, so the
block's first place is a mask to the others.

Both are counted here as plainly as can be, uncached, one prompt at a time: passes after the prefill, to the end of the answer.
The wide pass's prefill is given its first draft for nothing. Prints one line of JSON. What a pass of k + k*k tokens costs
compared with one of 2k is `benchmarks/passes.py --block-sizes 16 136`'s to say (its fused pass of 136 feeds 272 tokens).
"""

import argparse
import json
from itertools import islice

import torch
from rich.progress import track
from torch import Tensor

import setblock
from setblock.data.splits import SPLITS
from setblock.data.tasks.word_problems import word_problems
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.naive import naive_exact
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.naive import full_logits
from setblock.model.sbd_model import SBDModel

MAX_NEW_TOKENS = 256


def main() -> None:
    """Count, print."""
    options = parse_options()
    model = setblock.load(options.model) if options.model else setblock.load()
    k = options.block_size
    settings = DecodingSettings(method="exact", block_size=k, max_new_tokens=MAX_NEW_TOKENS)
    problems = list(islice(word_problems(options.split), options.limit))
    tokens = narrow = narrow_whole = wide = 0
    for problem in track(problems, description="problems", transient=True):
        prompt = encode_prompt(model.tokenizer, problem.question)
        answer, passes = naive_exact(
            model, prompt, settings, sampler=EntropyBounded(options.gamma), forward=full_logits
        )
        same, whole = naive_exact(model, prompt, settings, sampler=EntropyBounded(float("inf")), forward=full_logits)
        also, fewest = wide_exact(model, prompt, block_size=k)
        assert answer == same == also, "all three are next-token decoding's text"
        tokens, narrow = tokens + len(answer), narrow + passes
        narrow_whole, wide = narrow_whole + whole, wide + fewest
    result = {
        "problems": len(problems),
        "split": options.split,
        "block_size": k,
        "tokens": tokens,
        "passes": {
            f"2k tokens, gamma {options.gamma:g}": narrow,
            "2k tokens, whole drafts": narrow_whole,
            "k + k*k": wide,
        },
        "tokens_fed": {"2k": 2 * k, "k + k*k": k + k * k},
    }
    print(json.dumps(result))


@torch.inference_mode()
def wide_exact(model: SBDModel, prompt: list[int], *, block_size: int) -> tuple[list[int], int]:
    """Decode greedily with passes that each check a draft and draft on from wherever the check may end.

    Returns:
        The generated token ids, end-of-text included, and the number of passes after the prefill.
    """
    text, passes = list(prompt), 0
    while True:
        # What follows a text of any length is in the pass that checked it; here it takes a forward of its own, not counted.
        draft = drafted(model, text, block_size)
        ends = [i for i, token in enumerate(draft) if token in model.end_of_text_ids]
        if ends[:1] == [0]:  # the first token is next-token decoding's own, and known without another check
            return [*text, draft[0]][len(prompt) :], passes
        draft = draft[: ends[0] + 1] if ends else draft
        causal = full_logits(model, text + draft, len(text) + len(draft)).argmax(dim=-1)[len(text) :]
        passes += 1
        agreed = next((i for i in range(1, len(draft)) if draft[i] != int(causal[i - 1])), len(draft))
        text += draft[:agreed]
        if text[-1] in model.end_of_text_ids:
            return text[len(prompt) :], passes


def drafted(model: SBDModel, text: list[int], block_size: int) -> list[int]:
    """Return the most likely token at each place of a block of masks after a text; the first is the causal output's."""
    assert model.facts is not None
    masks = [model.facts.mask_token_id] * block_size
    logits = full_logits(model, text + masks, len(text))
    start = len(text) - int(model.facts.logit_shift)
    block: Tensor = logits[start : start + block_size].argmax(dim=-1)
    block[0] = logits[len(text) - 1].argmax()
    return [int(token) for token in block]


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; by default the bundled model")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--limit", type=int, default=200, help="how many problems")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--gamma", type=float, default=0.1, help="of exact mode's drafts")
    return parser.parse_args()


if __name__ == "__main__":
    main()

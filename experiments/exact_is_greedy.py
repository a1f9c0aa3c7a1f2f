"""Compare exact mode with Transformers' own greedy `generate`, token for token, on held-out word problems.

    python experiments/exact_is_greedy.py --limit 1000

Prints one line of JSON: how many answers are the same, and how many passes they took. Exits with 1 where one differs.
"""

import argparse
import json
import sys
from itertools import islice

import torch
from rich.progress import track

import setblock
from setblock.data.tasks.word_problems import word_problems
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt

MAX_NEW_TOKENS = 256


def main() -> None:
    """Decode by both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; by default the bundled model")
    parser.add_argument("--limit", type=int, default=1000, help="how many problems")
    parser.add_argument("--batch-size", type=int, default=100, help="of exact mode; generate gets one prompt at a time")
    options = parser.parse_args()
    model = setblock.load(options.model) if options.model else setblock.load()
    questions = [problem.question for problem in islice(word_problems("test"), options.limit)]
    settings = DecodingSettings(method="exact", max_new_tokens=MAX_NEW_TOKENS)
    ours = [
        answer
        for first in range(0, len(questions), options.batch_size)
        for answer in generate_batch(model, questions[first : first + options.batch_size], settings=settings)
    ]
    different, passes = [], 0
    for question, answer in track(list(zip(questions, ours, strict=True)), description="generate", transient=True):
        prompt = torch.tensor([encode_prompt(model.tokenizer, question)], device=model.device)
        with torch.inference_mode():
            output = model.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=MAX_NEW_TOKENS,
            )
        theirs = output[0, prompt.shape[1] :].tolist()
        passes += len(theirs) - 1  # the first token comes from the prefill
        if theirs != answer.token_ids:
            different.append(question)
    mine = sum(answer.passes.decoding for answer in ours)
    result = {
        "problems": len(questions),
        "identical": len(questions) - len(different),
        "generate_passes": passes,
        "exact_passes": mine,
        "nfe_speedup": passes / mine,
        "different": different,
    }
    print(json.dumps(result))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()

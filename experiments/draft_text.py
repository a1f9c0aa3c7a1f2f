"""Count how many passes copied drafts save, without a model: on texts that are known, what a draft would have had right.

    python experiments/draft_text.py --out experiments/results/draft_text.jsonl

The texts are the draft text of `smollm2`: its answers to prompts that it wrote itself. Every third is decoded again, and drafts
are copied from it and from a share of the others. A line for each share, match and draft length has the fraction of passes that
check a draft, the tokens of such a pass (as in `setblock.evaluation.block_choice`), and the passes saved. The tokenizer is that
of `setblock fetch smollm2-base`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from setblock.decoding.drafts.lookup import copied
from setblock.files import ASSETS
from setblock.model.loading.loading import load_tokenizer
from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE, DraftText, indexed, read_texts

SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
MATCHES, LENGTHS = (1, 2, 3, 4), (2, 4, 8, 16, 32)
MOST_TOKENS = 128


def main() -> None:
    """Count, print, and write."""
    options = parse_options()
    _, tokenizer = load_tokenizer("smollm2-base")
    texts = list(read_texts(ASSETS / "smollm2" / f"{DRAFT_TEXT_FILE}.gz"))
    coded: list[list[int]] = tokenizer(texts, add_special_tokens=False).input_ids
    coded = [[*each, tokenizer.eos_token_id] for each in coded]
    again, others = coded[::3], [each for place, each in enumerate(coded) if place % 3]
    lines = []
    for share in options.shares:
        kept = others[: round(share * len(others))]
        draft_text = indexed(kept) if kept else None
        for matched in MATCHES if share == 1 else (1,):
            for length in LENGTHS if share == 1 else (16,):
                counts = [passes_of(each[:MOST_TOKENS], draft_text, matched=matched, length=length) for each in again]
                drafted, of_drafts, plain = (sum(column) for column in zip(*counts, strict=True))
                lines.append(
                    {
                        "tokens_of_others": sum(map(len, kept)),
                        "matched": matched,
                        "length": length,
                        "drafted": round(drafted / (drafted + plain), 3),
                        "tokens_of_a_draft": round(of_drafts / drafted, 3),
                        "passes_saved": round((of_drafts + plain) / (drafted + plain), 3),
                    }
                )
                print(json.dumps(lines[-1]), flush=True)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def passes_of(text: Sequence[int], draft_text: DraftText | None, *, matched: int, length: int) -> tuple[int, int, int]:
    """Return the passes that check a draft, the tokens that these bring, and the passes without a draft. The prefill gives the
    first token."""
    tokens = torch.tensor([[*text, *[-1] * length]])
    known, drafted, of_drafts, plain = 1, 0, 0, 0
    while known < len(text):
        found = copied(tokens, torch.tensor([known - 1]), size=length, others=draft_text)
        if int(found.matched) < matched:
            known, plain = known + 1, plain + 1
            continue
        brought = min(right_of(found.token_ids[0, 1:], tokens[0, known:]) + 1, len(text) - known)
        known, drafted, of_drafts = known + brought, drafted + 1, of_drafts + brought
    return drafted, of_drafts, plain


def right_of(draft: Tensor, text: Tensor) -> int:
    """Return how many tokens of a draft are the text's, up to the first that is not."""
    return int((draft == text[: len(draft)]).long().cumprod(dim=0).sum())


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the other texts")
    parser.add_argument("--out", type=Path, help="a JSON Lines file")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Define your own sampler: reveal every position that is confident enough, and at least the most confident one.

    python examples/own_sampler.py
    python examples/own_sampler.py generate --method sbd --sampler certain --sampler-option odds=5 "PROMPT"

A sampler is any object with this `select`. It sees the distributions of a block and which positions are still masked, and
returns which ones to reveal. The decoding loop does the rest. Every row that has a candidate must reveal at least one.

With a name in `SAMPLERS`, the command line knows it, too. With arguments, this program is the command line.
"""

import sys
from dataclasses import dataclass

import setblock
from setblock.decoding.samplers import SAMPLERS, BlockView, Selection, at_least_one


@dataclass(frozen=True)
class Certain:
    """Reveal where the most probable token is at least `odds` times as probable as all the others together."""

    odds: float = 20.0

    def select(self, block: BlockView) -> Selection:
        """Choose among the `block.candidates` [B, k] by their distributions."""
        certain = block.confidence >= self.odds * (1 - block.confidence)
        return Selection(at_least_one(certain, block, score=block.confidence))


SAMPLERS["certain"] = Certain


def main() -> None:
    """Decode one problem with it, and with the paper's sampler."""
    model = setblock.load()
    question = "Maya has 12 apples. Maya finds 7 more. Maya gives away 4 of them. How many apples does Maya have now?"
    for sampler in (Certain(), setblock.EntropyBounded()):
        answer = setblock.generate(model, question, settings=setblock.DecodingSettings(method="sbd", sampler=sampler))
        print(f"{sampler}: {answer.num_tokens} tokens in {answer.num_forwards} passes\n{answer.text}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from setblock.cli.main import main as command_line

        command_line()
    else:
        main()

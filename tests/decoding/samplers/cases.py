"""What the samplers' tests are drawn from: hyperparameters of every rule, and what a model says pass by pass."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from setblock.decoding.samplers import SAMPLERS, BlockView, Memory, Sampler, Selection
from setblock.decoding.samplers.named import own_rules
from setblock.files import module_of

FOLDER = Path(__file__).parents[3] / "examples" / "samplers"


def example(name: str) -> type[Any]:
    """The class of a rule in `examples/samplers/`."""
    kind: type[Any] = getattr(module_of(FOLDER / f"{name.replace('-', '_')}.py"), name.title().replace("-", ""))
    return kind


EXAMPLES = {name: example(name) for name in sorted(path.stem.replace("_", "-") for path in FOLDER.glob("*.py"))}
KINDS = {name: SAMPLERS[name] for name in own_rules()} | EXAMPLES
"""The rules of the package, and those that are plug-ins of the repository."""

PROBABILITIES = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.floats(0, 1))
NATS = st.one_of(st.sampled_from([0.0, 0.1, 0.35, math.inf]), st.floats(0, 4))
COUNTS = st.integers(1, 5)

# Every rule's hyperparameters. A rule of KINDS without an entry here fails the tests.
PARAMETERS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "entropy-bounded": {"gamma": NATS, "proxy": st.sampled_from(["entropy", "confidence", "margin"])},
    "entropy-prefix": {"gamma": NATS},
    "entropy-threshold": {"threshold": NATS},
    "confidence-threshold": {"threshold": PROBABILITIES},
    "factor": {"factor": NATS},
    "fixed-count": {"count": COUNTS},
    "left-to-right": {"count": COUNTS},
    "confident-prefix": {"threshold": PROBABILITIES},
    "adaptive-confidence": {"lower": st.floats(0, 0.5), "upper": st.floats(0.5, 1)},
    "distance-penalty": {"threshold": NATS, "penalty": st.sampled_from([0.0, 0.02, 0.5])},
    "spaced": {"gamma": NATS, "gap": COUNTS},
    "dilated": {"stride": st.integers(1, 12)},
    "klass": {"threshold": st.sampled_from([0.0, 0.3, 0.6, 0.9]), "max_kl": NATS, "passes": st.integers(1, 3)},
    "credit-decoding": {
        "threshold": st.sampled_from([0.0, 0.6, 0.8, 0.9, 0.95]),
        "strength": st.sampled_from([0.0, 0.7, 1.5, 3.0]),
        "decay": st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
        "power": st.sampled_from([0.0, 0.2, 1.0]),
    },
}


@st.composite
def samplers(draw: st.DrawFn, name: str) -> Sampler:
    sampler: Sampler = KINDS[name](**draw(st.fixed_dictionaries(PARAMETERS[name])))
    return sampler


@dataclass(frozen=True)
class Passes:
    """What a model says of a block of each row, pass by pass, whatever has been revealed.

    Attributes:
        logits: [P, B, k, V] float32, -inf for banned tokens, of which there may be more or fewer in later passes.
        needed: [B, k] bool, the positions that have to be revealed.
    """

    logits: Tensor
    needed: Tensor

    def row(self, row: int) -> "Passes":
        return Passes(self.logits[:, row : row + 1], self.needed[row : row + 1])

    def first(self, *, memory: Memory | None = None) -> BlockView:
        return BlockView.of(self.logits[0], self.needed, torch.zeros_like(self.needed), memory or {})


@st.composite
def passes(draw: st.DrawFn, *, bans: bool = True) -> Passes:
    """Distributions of mixed sharpness, which change from pass to pass much, little or not at all."""
    batch, k, vocabulary = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5, 8, 8])), draw(st.integers(2, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    sizes = torch.tensor(draw(st.sampled_from([[0.0], [0.05, 0.3], [0.0, 0.0, 0.05, 2.0]])))
    change = sizes[torch.randint(len(sizes), (k, batch, k, 1), generator=generator)]
    logits = normal(1, batch, k, vocabulary) * torch.rand(batch, k, 1, generator=generator) * 4
    logits = logits + (change * normal(k, batch, k, vocabulary)).cumsum(dim=0)
    if bans and draw(st.booleans()):
        banned = torch.rand(k, batch, 1, vocabulary, generator=generator) < 0.3
        banned[..., draw(st.integers(0, vocabulary - 1))] = False
        logits = logits.masked_fill(banned, -math.inf)
    needed = torch.rand(batch, k, generator=generator) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    return Passes(logits, needed)


def run(sampler: Sampler, said: Passes) -> Iterator[tuple[BlockView, Selection]]:
    """The plain loop: every pass's view and answer, until all that is needed is revealed or the passes are over."""
    revealed, memory = torch.zeros_like(said.needed), {}
    for logits in said.logits:
        if bool((~said.needed | revealed).all()):
            return
        block = BlockView.of(logits, said.needed & ~revealed, revealed, memory)
        selection = sampler.select(block)
        yield block, selection
        revealed, memory = revealed | selection.reveal, selection.memory


def chosen(block: BlockView, selection: Selection) -> Tensor:
    """[B, k] the tokens that greedy decoding takes."""
    return (block.logits if selection.logits is None else selection.logits).argmax(dim=-1)

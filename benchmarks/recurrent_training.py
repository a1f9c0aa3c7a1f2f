"""Compare ways to train a model with a recurrent state in blocks, at equal compute, with a model of attention alone beside it.

    OMP_NUM_THREADS=1 python benchmarks/recurrent_training.py --runs runs/recurrent \
        --out benchmarks/results/recurrent_training.json

Both models have about 4.7M weights and learn word problems. The hybrid is a small `qwen3_next`, with linear attention in two
of three layers. The other is a `qwen3`. Each first learns next tokens. Then each arm continues from these weights with the loss
of eq. 14, causal blocks and one noisy copy:

- `rows`: each text is a row, and one of its blocks, drawn at random, is a row behind the text up to there, as in `setblock
  train` for such models.
- `states`: the text is fed block by block. Each clean block, and each noisy one in its place, continues from the state before
  it, with gradients through the states.
- `doubled`: the paper's input, as in `setblock train` for models of attention alone.

Compute is counted as tokens fed, without padding, since both models have as many weights. Every arm stops at the same number,
and rows once more at as many seconds as `states`. Seconds are the process's CPU time.

Held-out problems then give the loss of the answers' next tokens and of masked tokens, and the passes of methods `exact` and
`sbd`. Intervals are of 95%, by the bootstrap over problems, with the sum over an arm's seeds for each.
A run that was stopped continues with what is missing. A table for people, JSON on the last line.
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer

from measuring.output import at_least_one, begin, finish, note, parser_of, resumed, write
from setblock import load
from setblock.data.packing import IGNORE, Document, RowDataset, as_batch, unpacked
from setblock.data.tasks import TASKS
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.model.runners.forward import logits_at
from setblock.model.sbd_model import SBDModel
from setblock.training.config import SBDConfig
from setblock.training.inputs.cut_rows import cut_inputs
from setblock.training.inputs.doubled import doubled_inputs, learned_tokens, noisy_halves
from setblock.training.inputs.noising import Noising, NoisyHalf
from setblock.training.loss.forward import training_loss
from setblock.training.trainer.optimizer import MuonAdamW

BLOCK = 16
ROWS = 16  # texts of a step
TASK = TASKS["word-problems"]
_SHARED: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
    "max_position_embeddings": 1024,
}
MODELS: dict[str, dict[str, Any]] = {
    "hybrid": _SHARED
    | {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "mlp_only_layers": list(range(6)),
        "intermediate_size": 640,
    },
    "attention": _SHARED | {"model_type": "qwen3", "intermediate_size": 704},
}
_SMALL = {"hidden_size": 64, "intermediate_size": 64, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
ARMS = {  # of each, its model, its input, and the tokens that it is fed, over `--tokens`
    "hybrid, rows": ("hybrid", "rows", 1.0),
    "hybrid, states": ("hybrid", "states", 1.0),
    "hybrid, more rows": ("hybrid", "rows", 1.8),  # as many seconds on a CPU as `states`
    "attention, rows": ("attention", "rows", 1.0),
    "attention, doubled": ("attention", "doubled", 1.0),
}


@dataclass
class Losses:
    """The sums of both terms of eq. 14 over the targets of a step, how many these are, and the tokens that were fed."""

    ntp: Tensor = field(default_factory=lambda: torch.zeros(()))
    matp: Tensor = field(default_factory=lambda: torch.zeros(()))
    ntp_count: int = 0
    matp_count: int = 0
    fed: int = 0
    matp_scale: float = 1.0  # how many masked tokens each target counts for

    @property
    def total(self) -> Tensor:
        """Return the loss of eq. 14 for each next token."""
        return (self.ntp + self.matp_scale * self.matp) / self.ntp_count


def losses_of(sbd: SBDModel, kind: str, rows: dict[str, Tensor], seed: tuple[int, ...]) -> Losses:
    """Return the losses of a batch by an arm's input; `plain` is that of next tokens alone."""
    noise = noise_of(sbd, seed)
    if kind == "plain":
        return row_losses(sbd.model, rows, [], seed)
    if kind == "doubled":
        return doubled_losses(sbd.model, rows, noise)
    halves = noisy_halves(rows, **noise)
    return state_losses(sbd.model, rows, halves) if kind == "states" else row_losses(sbd.model, rows, halves, seed)


def row_losses(
    model: PreTrainedModel,
    rows: dict[str, Tensor],
    halves: Sequence[NoisyHalf],
    seed: tuple[int, ...],
    *,
    copies: int = 1,
) -> Losses:
    """Return the losses of texts, and of `copies` blocks of each behind its text."""
    inputs = cut_inputs(rows, halves, copies=copies, logit_shift=True, seed=seed)
    where: dict[str, Any] = {"position_ids": inputs.position_ids, "attention_mask": None}
    logits = logits_at(model, torch.cat([inputs.ntp.index, inputs.matp.index]), input_ids=inputs.input_ids, **where)
    count = len(inputs.ntp.index)
    ntp, matp = logits[:count].float(), logits[count:].float()
    return Losses(
        cross_entropy(ntp, inputs.ntp.token_ids, reduction="sum"),
        cross_entropy(matp, inputs.matp.token_ids, reduction="sum"),
        len(ntp),
        len(matp),
        inputs.clean_tokens + inputs.noisy_tokens,
        inputs.matp_scale,
    )


def doubled_losses(model: PreTrainedModel, rows: dict[str, Tensor], noise: dict[str, Any]) -> Losses:
    """Return the losses of the paper's input."""
    inputs = doubled_inputs(rows, **noise, logit_shift=True, idle_blocks=False, causal_block=True)
    loss = training_loss(model, inputs, head=None, ntp_weight=1.0, matp_weight=1.0)
    ntp, fed = loss.ntp_sum.detach(), inputs.clean_tokens + inputs.noisy_tokens  # the gradient is in the total
    return Losses(ntp, loss.total - ntp, loss.ntp_count, loss.matp_count, fed)


class _GraphLayer(LinearAttentionLayer):
    """A cache layer whose state stays in the graph: Transformers' own overwrites what the backward pass needs."""

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Replace the state."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


@dataclass(frozen=True)
class _Piece:
    """Tokens of a text, all of a row: a clean block or a noisy one, with its targets as (output, token)."""

    text: int
    token_ids: list[int]
    ntp: list[tuple[int, int]]
    matp: list[tuple[int, int]]


def pieces_of(rows: dict[str, Tensor], halves: Sequence[NoisyHalf], start: int, end: int) -> list[_Piece]:
    """Return the clean tokens from `start` to `end` of each text that is so long, then the noisy blocks at `start`. Each of
    the `rows` is one text, with blocks at the multiples of their size."""
    found = []
    lengths = (rows["document_ids"] == 0).sum(dim=1).tolist()
    for text, length in enumerate(lengths):
        following = rows["labels"][text, start + 1 : end + 1].tolist()
        targets = [(at, label) for at, label in enumerate(following) if label != IGNORE]
        if start < length:
            found.append(_Piece(text, rows["input_ids"][text, start : min(end, length)].tolist(), targets, []))
    for text, half in enumerate(halves):
        here = half.block_starts == start
        learned = np.flatnonzero(learned_tokens(half, logit_shift=True)[here])
        targets = [
            (at - 1, label) for at, label in zip(learned.tolist(), half.labels[here][learned].tolist(), strict=True)
        ]
        if targets:
            found.append(_Piece(text, half.input_ids[here].tolist(), [], targets))
    return found


def state_losses(model: PreTrainedModel, rows: dict[str, Tensor], halves: Sequence[NoisyHalf]) -> Losses:
    """Return the losses of texts, one in each row, and of all their noisy blocks."""
    losses, longest = Losses(), int((rows["document_ids"] == 0).sum(dim=1).max())
    first = min(int(half.block_starts[learned_tokens(half, logit_shift=True)].min(initial=longest)) for half in halves)
    kinds = {"linear_attention": _GraphLayer, "full_attention": DynamicLayer}
    cache, held = Cache(layers=[kinds[each]() for each in model.config.layer_types]), list[int]()
    starts = [*([0] if first else []), *range(first, longest, BLOCK)]
    for start, end in zip(starts, [*starts[1:], starts[-1] + BLOCK], strict=True):
        pieces = pieces_of(rows, halves if start >= first else [], start, end)
        if start:  # each continues from its text's state
            cache.reorder_cache(torch.tensor([held.index(piece.text) for piece in pieces]))
        tokens = torch.zeros((len(pieces), end - start), dtype=torch.long)
        for row, piece in enumerate(pieces):
            tokens[row, : len(piece.token_ids)] = torch.tensor(piece.token_ids)
        number = len([piece for piece in pieces if not piece.matp])
        held = [piece.text for piece in pieces[:number]]
        targets = [
            [
                (row * (end - start) + at, token)
                for row, piece in enumerate(pieces)
                for at, token in getattr(piece, term)
            ]
            for term in ("ntp", "matp")
        ]
        index, token_ids = torch.tensor([*targets[0], *targets[1]], dtype=torch.long).view(-1, 2).T
        where: dict[str, Any] = {"position_ids": torch.arange(start, end).expand(len(pieces), -1), "cache": cache}
        read = index if len(index) else torch.zeros(1, dtype=torch.long)
        logits = logits_at(model, read, input_ids=tokens, attention_mask=None, **where)[: len(index)]
        each = cross_entropy(logits.float(), token_ids, reduction="none")
        ntp, matp = each[: len(targets[0])], each[len(targets[0]) :]
        losses.ntp, losses.matp = losses.ntp + ntp.sum(), losses.matp + matp.sum()
        losses.ntp_count, losses.matp_count = losses.ntp_count + len(ntp), losses.matp_count + len(matp)
        losses.fed += sum(len(piece.token_ids) for piece in pieces)
        cache.reorder_cache(torch.arange(number))
    return losses


def noise_of(sbd: SBDModel, seed: tuple[int, ...]) -> dict[str, Any]:
    """Return the arguments of `noisy_halves`."""
    assert sbd.sbd_config is not None
    assert sbd.sbd_config.mask_token_id is not None
    mask = sbd.sbd_config.mask_token_id
    return {
        "block_size": BLOCK,
        "noising": Noising(mask_rate_per="block", complete_last_block=True),
        "noise_ids": range(mask, mask + 1),
        "end_of_text_id": sbd.end_of_text_ids[0],
        "context_length": 1024,
        "seed": seed,
    }


def new_model(name: str, tokenizer: PreTrainedTokenizerBase, *, small: bool = False) -> SBDModel:
    """Return a model with random weights."""
    config = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **MODELS[name]}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(config | (_SMALL if small else {}))))
    sbd = SBDModel(model.eval(), tokenizer)
    sbd.prepare_for_training(block_sizes=[BLOCK], logit_shift=True, causal_block=True)
    return sbd


def document_of(example: Any, tokenizer: PreTrainedTokenizerBase) -> Document:
    """Return a problem with its answer and the end of text. The answer and the end carry the loss."""
    prompt, answer = (tokenizer(each).input_ids for each in (example.prompt, example.completion))
    answer = [*answer, tokenizer.eos_token_id]
    return Document([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))


def batches(tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches of problems of similar lengths, without end. Another seed gives other problems."""
    rng, examples = random.Random(seed), TASK.examples("train", seed=seed + 1)
    while True:
        dataset = RowDataset(
            unpacked(sorted((document_of(each, tokenizer) for each in islice(examples, 8 * ROWS)), key=len))
        )
        starts = list(range(0, len(dataset), ROWS))
        rng.shuffle(starts)
        for start in starts:
            items = [dataset[number] for number in range(start, start + ROWS)]
            yield as_batch(items, pad_token_id=tokenizer.eos_token_id)


def train(sbd: SBDModel, kind: str, *, budget: int, seed: int, rate: float) -> dict[str, float]:
    """Train until `budget` tokens were fed; the learning rate falls with these. Return what it took."""
    arguments = SBDConfig(output_dir="unused", learning_rate=rate, adam_beta2=0.98, weight_decay=0.05, report_to="none")
    optimizer = MuonAdamW(sbd.model, arguments)
    fed, steps, started = 0, 0, time.process_time()
    sbd.model.train()
    for rows in batches(sbd.tokenizer, seed=seed):
        progress = fed / budget
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, progress * 20 + 0.02) * (0.55 + 0.45 * float(np.cos(np.pi * progress)))
        with torch.autocast("cpu", torch.bfloat16):  # for each step anew: it keeps the weights that it has cast
            losses = losses_of(sbd, kind, rows, (seed, steps))
        losses.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(sbd.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        fed, steps = fed + losses.fed, steps + 1
        if steps % 25 == 0:
            each = [
                float(losses.ntp.detach()) / losses.ntp_count,
                float(losses.matp.detach()) / max(1, losses.matp_count),
            ]
            note(f"{steps} steps, {fed:,} tokens, {time.process_time() - started:.0f} s: {each[0]:.3f}, {each[1]:.3f}")
    sbd.model.eval()
    return {"tokens": fed, "steps": steps, "texts": steps * ROWS, "cpu_seconds": time.process_time() - started}


@torch.inference_mode()
def held_out(sbd: SBDModel, *, problems: int, new_tokens: int) -> dict[str, list[float]]:
    """Return lists with a number for each held-out problem: the losses of its next and of its masked tokens, how many of these
    there are, and of methods `exact` and `sbd` the tokens, the passes without the prompt's, and whether the answer is right."""
    assert TASK.judge is not None
    examples = list(islice(TASK.examples("test"), problems))
    found: dict[str, list[float]] = {name: [] for name in ("ntp_loss", "ntp_count", "matp_loss", "matp_count")}
    dataset = RowDataset(unpacked(document_of(each, sbd.tokenizer) for each in examples))
    for number in range(problems):
        rows = as_batch([dataset[number]], pad_token_id=0)
        losses = losses_of(sbd, "rows", rows, (0,))
        for name in ("ntp", "matp"):
            found[f"{name}_loss"].append(float(getattr(losses, name)))
            found[f"{name}_count"].append(getattr(losses, f"{name}_count"))
    prompts = [sbd.tokenizer(each.prompt).input_ids for each in examples]
    for method in ("exact", "sbd"):
        how: dict[str, Any] = {"method": method, "block_size": BLOCK, "max_new_tokens": new_tokens, "prompt_lookup": 0}
        settings, answers = DecodingSettings(drafts="fixed", **how), []
        for start in range(0, problems, 32):
            answers += generate_batch(sbd, prompts[start : start + 32], settings=settings)
        found[f"{method}_tokens"] = [len(each.token_ids) for each in answers]
        found[f"{method}_passes"] = [each.passes.decoding for each in answers]
        judged = zip(examples, answers, strict=True)
        found[f"{method}_right"] = [float(TASK.judge(example, each.text).right) for example, each in judged]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, then measure it. The file is written after each model."""
    options = parse_options(arguments)
    results = begin("recurrent_training", options)
    results |= {name: getattr(options, name) for name in ("plain_tokens", "tokens", "seeds", "problems", "rates")}
    runs, tokenizer = resumed(results, options, kept="runs"), load().tokenizer
    names = {arm: [f"{arm}, seed {seed}" for seed in range(options.seeds)] for arm in options.arms}
    with ExitStack() as opened:
        folder = options.runs or Path(opened.enter_context(TemporaryDirectory()))

        def keep(name: str, figures: dict[str, Any]) -> None:
            runs[name] = runs.get(name, {}) | figures
            if options.out:
                write(results, options.out)

        def trained(name: str, start: str | None, kind: str, **how: Any) -> None:
            if name not in runs:
                note(name)
                sbd = load(folder / start) if start else new_model(name, tokenizer, small=options.quick)
                took = train(sbd, kind, **how)
                sbd.save(folder / name)
                keep(name, {"parameters": sbd.num_parameters, **took})

        for seed in range(options.seeds):
            for arm in options.arms:
                model, kind, share = ARMS[arm]
                trained(model, None, "plain", budget=options.plain_tokens, seed=100, rate=options.rates[0])
                trained(
                    names[arm][seed],
                    model,
                    kind,
                    budget=round(share * options.tokens),
                    seed=seed,
                    rate=options.rates[1],
                )
        for name in (each for of_arm in names.values() for each in of_arm if "exact_passes" not in runs[each]):
            note(f"held-out problems: {name}")
            keep(name, held_out(load(folder / name), problems=options.problems, new_tokens=options.new_tokens))
    arms = {arm: [runs[name] for name in of_arm] for arm, of_arm in names.items()}
    results["arms"] = {arm: summary(of_arm, arms.get("hybrid, rows", of_arm)) for arm, of_arm in arms.items()}
    finish(results, options)


def summary(runs: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an arm's figures: what a run took, and what came of it, with intervals. `first`: the runs of the arm that it is
    compared with, problem by problem."""
    figures = {
        "next_token_loss": ("ntp_loss", "ntp_count"),
        "masked_token_loss": ("matp_loss", "matp_count"),
        "exact_tokens_per_pass": ("exact_tokens", "exact_passes"),
        "exact_right": ("exact_right", None),
        "sbd_tokens_per_pass": ("sbd_tokens", "sbd_passes"),
        "sbd_right": ("sbd_right", None),
    }
    took = {name: sum(run[name] for run in runs) / len(runs) for name in ("tokens", "texts", "steps", "cpu_seconds")}
    found = {name: interval(_sums(runs, above), _sums(runs, below)) for name, (above, below) in figures.items()}
    for name in ("ntp", "matp"):
        more = _sums(runs, f"{name}_loss") - _sums(first, f"{name}_loss")
        found[f"{name}_difference"] = interval(more, _sums(first, f"{name}_count"))
    found["exact_passes_ratio"] = interval(_sums(runs, "exact_passes"), _sums(first, "exact_passes"))
    return took | found


def _sums(runs: Sequence[dict[str, Any]], name: str | None) -> np.ndarray:
    """Return [P], a figure of each problem over all seeds, or the number of seeds without a name."""
    found: np.ndarray = np.sum([run[name] if name else np.ones(len(run["ntp_loss"])) for run in runs], axis=0)
    return found


def interval(tops: np.ndarray, bottoms: np.ndarray) -> dict[str, float]:
    """Return the ratio of two sums over problems [P], and its interval."""
    drawn = np.random.default_rng(0).integers(len(tops), size=(2000, len(tops)))
    low, high = np.quantile(tops[drawn].sum(axis=1) / bottoms[drawn].sum(axis=1), [0.025, 0.975])
    return {"value": float(tops.sum() / bottoms.sum()), "low": float(low), "high": float(high)}


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--runs", type=Path, metavar="FOLDER", help="keep the models here, to continue a run with the same --out")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=f"of {'; '.join(ARMS)} (all)")
    add("--plain-tokens", type=int, default=400_000, help="fed in the training on next tokens (400,000)")
    add("--tokens", type=int, default=120_000, help="fed in each arm (120,000)")
    add("--seeds", type=int, default=2, help="of each arm (2)")
    add("--problems", type=int, default=64, help="held-out ones (64)")
    add("--new-tokens", type=int, default=80, help="the most of an answer (80)")
    add("--rates", nargs=2, type=float, default=[3e-3, 1.5e-3], help="learning rates of both trainings (0.003 0.0015)")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(plain_tokens=1000, tokens=1000, seeds=1, problems=2, new_tokens=20)
    at_least_one(parser, options, "plain_tokens", "tokens", "seeds", "problems", "new_tokens")
    if options.out and options.runs is None and not options.quick:
        parser.error("--out needs --runs, so that the run can continue")
    return options


if __name__ == "__main__":
    main()

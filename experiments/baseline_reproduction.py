"""Measure whether learning blocks costs a model its plain decoding. NTP loss and accuracy of an SBD model and its
next-token twin.

    python experiments/baseline_reproduction.py --twin runs/word-problems-twin --limit 1000 --out docs/experiments/baseline.md

Both models answer the same held-out word problems one token a pass. The loss is the cross entropy, in nats a token, of the
written-out answers' tokens, end-of-text included, by the causal pass alone. Differences are paired, problem by problem, with
95% intervals of a normal distribution for losses and of 10,000 bootstrap samples (seed 0) for accuracies.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track

import setblock
from setblock.data.packing import Document
from setblock.data.tasks import TASKS
from setblock.data.tasks.task import SPLITS
from setblock.data.texts.encoding import encode_records
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.evaluation.judging import verdicts_on
from setblock.evaluation.result import wilson_interval
from setblock.evaluation.run import Exam
from setblock.evaluation.sweeps.fingerprint import model_fingerprint, provenance
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Figures:
    """Hold the figures of one model: for each problem the loss in nats a token, and whether it was answered right."""

    name: str
    fingerprint: str
    losses: list[float]
    correct: list[int]

    @property
    def loss(self) -> float:
        """Return the mean over problems."""
        return statistics.mean(self.losses)

    @property
    def accuracy(self) -> float:
        """Return the share of right answers."""
        return statistics.mean(self.correct)


def main() -> None:
    """Measure both, print, write."""
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        models = {name: measured(name, path, options) for name, path in (("SBD", options.sbd), ("twin", options.twin))}
    except SetBlockError as error:
        sys.exit(f"error: {error}")
    report = "\n".join(report_lines(models["SBD"], models["twin"], options)) + "\n"
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        draw(models["SBD"], models["twin"], options.out.with_suffix(".png"))
        raw = {"made": provenance(), "models": {name: asdict(each) for name, each in models.items()}}
        options.out.with_suffix(".json").write_text(json.dumps(raw) + "\n", encoding="utf-8")
        options.out.write_text(report, encoding="utf-8")


def measured(name: str, path: Path, options: argparse.Namespace) -> Figures:
    """Return the loss and the answers of one model."""
    model = setblock.load(path)
    task = TASKS["word-problems"]
    examples = list(islice(task.examples(options.split, seed=options.seed), options.limit))
    records = ({"prompt": each.prompt, "completion": each.completion} for each in examples)
    documents = list(encode_records(model.tokenizer, records))
    batches = [documents[i : i + options.batch_size] for i in range(0, len(documents), options.batch_size)]
    losses = [loss for batch in track(batches, description=f"{name}: loss") for loss in ntp_losses(model, batch)]
    ntp = DecodingSettings(method="ntp")
    asked = {"split": options.split, "seed": options.seed, "limit": options.limit, "batch_size": options.batch_size}
    answers = Exam(model, task, **asked).decode(ntp).generations
    verdicts = verdicts_on(task, examples, [answer.text for answer in answers]) or []
    correct = [int(each.right) for each in verdicts]
    return Figures(f"{name} ({path.name})", model_fingerprint(model), losses, correct)


@torch.inference_mode()
def ntp_losses(model: SBDModel, documents: Sequence[Document]) -> list[float]:
    """Return, for each document, the mean cross entropy of the tokens that carry loss, in nats, by the causal pass."""
    longest = max(map(len, documents))
    ids = torch.zeros((len(documents), longest), dtype=torch.long)  # [B, L], filled up on the right: causal, so unseen
    targets = torch.full((len(documents), longest), -100)
    for row, document in enumerate(documents):
        tokens, carries = torch.tensor(document.token_ids), torch.tensor(document.carries_loss)
        ids[row, : len(tokens)] = tokens
        targets[row, : len(tokens)] = tokens.masked_fill(~carries, -100)
    logits = model.model(input_ids=ids.to(model.device), use_cache=False).logits[:, :-1].float()  # [B, L - 1, V]
    if model.sbd_config is not None:
        logits[..., model.sbd_config.mask_token_id] = -torch.inf  # as decoding has it: never an answer
    wanted = targets[:, 1:].to(model.device)
    losses = F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=-100, reduction="none")  # [B, L - 1]
    means: list[float] = (losses.sum(dim=1) / (wanted != -100).sum(dim=1)).tolist()
    return means


def loss_difference(sbd: Figures, twin: Figures) -> tuple[float, float, float]:
    """Return the mean difference of the losses, and its 95% interval."""
    differences = [a - b for a, b in zip(sbd.losses, twin.losses, strict=True)]
    mean = statistics.mean(differences)
    spread = 1.96 * statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("inf")
    return mean, mean - spread, mean + spread


def accuracy_difference(sbd: Figures, twin: Figures, *, samples: int = 10_000) -> tuple[float, float, float]:
    """Return the difference of the accuracies, and its 95% bootstrap interval."""
    differences = [a - b for a, b in zip(sbd.correct, twin.correct, strict=True)]
    rng = random.Random(0)
    means = sorted(statistics.mean(rng.choices(differences, k=len(differences))) for _ in range(samples))
    return statistics.mean(differences), means[round(0.025 * samples)], means[round(0.975 * samples) - 1]


def report_lines(sbd: Figures, twin: Figures, options: argparse.Namespace) -> Iterator[str]:
    """Yield the report, in Markdown."""
    made: dict[str, Any] = provenance()
    yield "# SBD model and next-token twin, decoded plainly"
    yield ""
    yield (
        f"{len(sbd.losses):,} word problems, {options.split} split, seed {options.seed}. "
        f"{made['hardware']['gpu'] or made['hardware']['cpu']}, {made['date']}. Made by"
    )
    yield ""
    yield "```text"
    yield f"python experiments/baseline_reproduction.py {' '.join(sys.argv[1:])}"
    yield "```"
    if options.out:
        yield ""
        yield f"![Loss and accuracy of both]({options.out.with_suffix('.png').name})"
    yield ""
    yield "| model | fingerprint | NTP loss, nats a token | accuracy (95% interval) |"
    yield "|---|---|---|---|"
    for each in (sbd, twin):
        low, high = wilson_interval(sum(each.correct), len(each.correct))
        yield f"| {each.name} | {each.fingerprint} | {each.loss:.4f} | {each.accuracy:.1%} ({low:.1%} to {high:.1%}) |"
    loss, accuracy = loss_difference(sbd, twin), accuracy_difference(sbd, twin)
    yield (
        f"| difference | | {loss[0]:+.4f} ({loss[1]:+.4f} to {loss[2]:+.4f}) | "
        f"{100 * accuracy[0]:+.1f} points ({100 * accuracy[1]:+.1f} to {100 * accuracy[2]:+.1f}) |"
    )


def draw(sbd: Figures, twin: Figures, path: Path) -> None:
    """Draw the losses of both, problem by problem, and their accuracies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    left.plot(sorted(twin.losses), label=twin.name, color="0.4")
    left.plot(sorted(sbd.losses), label=sbd.name, color="#0072B2")
    left.set(
        xlabel="problems, by loss", ylabel="NTP loss, nats a token", yscale="log", title="Loss of written-out answers"
    )
    left.legend(frameon=False)
    for at, (each, colour) in enumerate(((twin, "0.4"), (sbd, "#0072B2"))):
        low, high = wilson_interval(sum(each.correct), len(each.correct))
        error = [[100 * (each.accuracy - low)], [100 * (high - each.accuracy)]]
        right.errorbar([at], [100 * each.accuracy], yerr=error, fmt="o", color=colour, capsize=4)
    right.set(xticks=[0, 1], xticklabels=["twin", "SBD"], xlim=(-0.5, 1.5), ylabel="accuracy, %", title="95% intervals")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=140)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sbd", type=Path, default=BUNDLED_MODEL, metavar="FOLDER", help="the SBD model (the bundled one)")
    add("--twin", type=Path, required=True, metavar="FOLDER", help="its next-token twin")
    add("--split", choices=SPLITS, default="test")
    add("--seed", type=int, default=0, help="other problems of the split (0)")
    add("--limit", type=int, default=1000, help="how many problems (1000)")
    add("--batch-size", type=int, default=100)
    add("--threads", type=int, default=0, help="0: PyTorch's own choice")
    add("--out", type=Path, metavar="FILE", help="write the report there; picture and raw figures beside it")
    options = parser.parse_args()
    if min(options.limit, options.batch_size) < 1:
        parser.error("--limit and --batch-size must be at least 1")
    return options


if __name__ == "__main__":
    main()

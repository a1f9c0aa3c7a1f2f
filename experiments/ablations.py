"""Train variants of a recipe at equal compute, several seeds each, and set accuracy and NFE speed-up against tokens.

    python experiments/ablations.py block-sizes --recipe recipes/word-problems-sbd.yaml --steps 500 --seeds 0 1
    python experiments/ablations.py all --steps 500 --only-report

A study is a set of variants, each a few overrides of the recipe; `--list` names them. Every variant starts from the recipe's
`model.path`, the next-token model, and trains for as many steps as give it the compute of `--steps` steps of the recipe: a
variant whose step takes more noisy tokens gets fewer. With `--base short` they vary short training in small batches, at 7/15 of
that compute, in place of the recipe. Runs are kept in `--out`, one folder each. What is finished is not run again, and what was
interrupted resumes. `STUDY.jsonl` (`STUDY-short.jsonl`) has a line for each evaluation of each run, a picture next to it shows
them.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from setblock.cli.app import app
from setblock.training.run.checkpoints import is_finished
from setblock.training.trainer.metrics import read_metrics
from setblock.yaml_loader import YAMLLoader

Overrides = Mapping[str, Any]
GAMMAS = (0.01, 0.1, 0.35)
AS_IT_IS = "as it is"
SHARE = "share"  # of the compute that a variant gets; the one key that is not the recipe's

# What the paper has where recipes/word-problems-sbd.yaml has something else
PAPER: dict[str, Any] = {
    "block_sizes": list(range(2, 17)),
    "logit_shift": False,
    "noise_on": "document",
    "mask_rate_per": "document",
    "noisy_copies": 1,
    "complete_last_block": False,
}

# More steps from fewer tokens. A document costs 2.8 here and 2 in the paper, so that a third of the documents is 7/15 of the
# compute.
SMALL_BATCHES: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "noisy_copies": 3,
    "learning_rate": 1.5e-3,
    SHARE: 7 / 15,
}

# A third of the compute, too: recipes/word-problems-sbd-short.yaml. A document costs 2.2.
A_THIRD: dict[str, Any] = SMALL_BATCHES | {
    "noisy_copies": 2,
    "complementary_masks": True,
    "block_size_curriculum": 0.5,
    "full_mask_share": 0.25,
    SHARE: 1 / 3,
}

BASES: dict[str, Overrides] = {"recipe": {}, "short": SMALL_BATCHES}

# Each variant is the base with these values instead; an empty one is the base itself.
STUDIES: dict[str, dict[str, Overrides]] = {
    "terms": {
        AS_IT_IS: {},
        "without the NTP term": {"ntp_weight": 0.0},
        "NTP term x 0.3": {"ntp_weight": 0.3},
    },
    "block-sizes": {
        AS_IT_IS: {},
        "fixed 16": {"block_sizes": [16]},
        "2 to 16, uniform": {"block_sizes": list(range(2, 17))},
        "growing over the first half": {"block_size_curriculum": 0.5},
    },
    "masks": {
        AS_IT_IS: {},
        "complementary": {"complementary_masks": True, "noisy_copies": 2},
        "two copies": {"noisy_copies": 2},  # what complementary masks are to be held against
        "a quarter whole": {"full_mask_share": 0.25},
        "tail": {"mask_places": "tail"},
        "rate per document": {"mask_rate_per": "document"},
    },
    "copies": {
        AS_IT_IS: {},
        "one": {"noisy_copies": 1},
        "two": {"noisy_copies": 2},
        "five": {"noisy_copies": 5},
    },
    "masked-loss": {
        AS_IT_IS: {},
        "total variation": {"masked_loss": "total_variation"},
    },
    "logits": {
        AS_IT_IS: {},
        "unshifted": {"logit_shift": False},
        "unshifted, first token causal": {"logit_shift": False, "first_token_from_causal": True},
    },
    "cheaper": {
        "the paper's": PAPER,
        "small batches, a third of the documents": SMALL_BATCHES,
        "small batches, a third of all": A_THIRD,
    },
    "thirds": {
        AS_IT_IS: A_THIRD,
        "without a quarter whole": A_THIRD | {"full_mask_share": 0.0},
        "learning rate 1e-3": A_THIRD | {"learning_rate": 1e-3},
        "NTP term x 3": A_THIRD | {"ntp_weight": 3.0},
        "the paper's": PAPER | {"per_device_train_batch_size": 4, "learning_rate": 1e-3, SHARE: 1 / 3},
    },
}


def main() -> None:
    """Run what is missing, report."""
    options = parse_options()
    if options.list:
        for study, variants in STUDIES.items():
            print(f"{study}: {'; '.join(variants)}")
        return
    for study in list(STUDIES) if options.study == "all" else [options.study]:
        variants = {variant: {**BASES[options.base], **overrides} for variant, overrides in STUDIES[study].items()}
        for variant, overrides in variants.items():
            if options.variants and variant not in options.variants:
                continue
            for seed in options.seeds:
                folder = run_folder(options, overrides, seed)
                if not options.only_report and not is_finished(folder):
                    train(options, folder, study, variant, overrides, seed)
        rows = [
            row
            for variant, overrides in variants.items()
            for seed in options.seeds
            for row in rows_of(options, variant, overrides, seed)
        ]
        report(options.out, study if options.base == "recipe" else f"{study}-{options.base}", rows)


def run_folder(options: argparse.Namespace, overrides: Overrides, seed: int) -> Path:
    """Return where a run is kept: by what it is, so that studies share the recipe itself."""
    name = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(overrides.items())) or "recipe"
    safe = "".join(c if c.isalnum() or c in "=,._-" else "" for c in name)
    return Path(options.out) / f"{Path(options.recipe).stem}-{options.steps}" / safe / f"seed-{seed}"


def steps_of(options: argparse.Namespace, overrides: Overrides) -> int:
    """Return the steps that take as much as `--steps` of the recipe itself: a token is a token, clean or noisy."""
    steps: int = options.steps
    share = float(overrides.get(SHARE, 1))
    return max(1, round(steps * share * cost_of_step(options, {}) / cost_of_step(options, overrides)))


def cost_of_step(options: argparse.Namespace, overrides: Overrides) -> float:
    """Return the documents' worth of tokens that a step takes: the clean half and its noisy copies.

    Copies are of answers alone where `noise_on` is `targets`: those are `--answer-share` of the tokens.
    """
    training = yaml.load(Path(options.recipe).read_text(), Loader=YAMLLoader)["training"] | dict(overrides)
    noisy = options.answer_share if training.get("noise_on") == "targets" else 1.0
    return float(training["per_device_train_batch_size"] * (1 + training.get("noisy_copies", 1) * noisy))


def train(options: argparse.Namespace, folder: Path, study: str, variant: str, overrides: Overrides, seed: int) -> None:
    """Train one run, as the command line does."""
    steps = steps_of(options, overrides)
    print(f"== {study}: {variant}, seed {seed}: {steps} steps", flush=True)
    every = max(1, math.ceil(steps / options.evaluations))
    values: dict[str, Any] = {f"training.{key}": value for key, value in overrides.items() if key != SHARE} | {
        "training.max_steps": steps,
        "training.seed": seed,
        "training.data_seed": seed,
        "training.save_steps": every,
        "training.save_total_limit": 1,
        "training.eval_strategy": "no",
        "evaluate_decoding.task": options.task,
        "evaluate_decoding.every": every,
        "evaluate_decoding.limit": options.limit,
        "evaluate_decoding.gammas": list(options.gammas),
    }
    extra = [part for text in options.set for part in ("--set", text)]
    command = ["train", options.recipe, "--output", str(folder)]
    for key, value in values.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    code = app(command + extra, standalone_mode=False)
    if code:
        sys.exit(code)


def rows_of(options: argparse.Namespace, variant: str, overrides: Overrides, seed: int) -> list[dict[str, Any]]:
    """Return the evaluations of a run, as far as it got."""
    training = yaml.load(Path(options.recipe).read_text(), Loader=YAMLLoader)["training"] | dict(overrides)
    batch, cost = training["per_device_train_batch_size"], cost_of_step(options, overrides)
    return [
        {
            "variant": variant,
            "seed": seed,
            "documents": entry["step"] * batch,
            "compute": entry["step"] * cost,
            **entry,
        }
        for entry in read_metrics(run_folder(options, overrides, seed))
        if "eval_accuracy_ntp" in entry
    ]


def report(out: str, study: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a study, draw them, and print how each variant ends."""
    if not rows:
        print(f"{study}: nothing has been run yet")
        return
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{study}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {key.rsplit("_", 1)[1] for row in rows for key in row if key.startswith("eval_nfe_speedup_")}
    names = sorted(settings, key=lambda name: (name == "exact", name != "exact" and float(name)))
    picture = folder / f"{study}.png"
    draw(rows, names, picture)
    print(
        f"\n{study}: {picture}\n| variant | runs | documents | with noisy copies | plain |"
        + "".join(f" {title(name)} |" for name in names)
    )
    print("|---|---|---|---|---|" + "---|" * len(names))
    for variant in dict.fromkeys(row["variant"] for row in rows):
        last = [max(group, key=lambda row: row["step"]) for group in by_seed(rows, variant)]
        spent = f"{mean(last, 'documents'):,.0f} | {mean(last, 'compute'):,.0f}"
        cells = [
            f"{mean(last, f'eval_accuracy_{name}'):.1%} ({mean(last, f'eval_nfe_speedup_{name}'):.2f}x)"
            for name in names
        ]
        print(f"| {variant} | {len(last)} | {spent} | {mean(last, 'eval_accuracy_ntp'):.1%} | {' | '.join(cells)} |")


def title(name: str) -> str:
    """Return the title of a decoding setting: a gamma or `exact`."""
    return name if name == "exact" else f"gamma {name}"


def by_seed(rows: Sequence[Mapping[str, Any]], variant: str) -> list[list[Mapping[str, Any]]]:
    """Return the rows of each run of a variant."""
    groups: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["variant"] == variant:
            groups[row["seed"]].append(row)
    return list(groups.values())


def mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the mean of one figure over runs; not a number where none has it."""
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else math.nan


def draw(rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> None:
    """Draw, above, NFE speed-up against compute (figure 5 of the paper: its steps against its NFE), below accuracy; a
    column for each setting and a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(names), figsize=(4 * len(names), 6.4), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for column, name in enumerate(names):
        for number, variant in enumerate(variants):
            for index, group in enumerate(by_seed(rows, variant)):
                ordered = sorted(group, key=lambda row: row["step"])
                compute = [row["compute"] for row in ordered]
                label = variant if index == 0 else None
                for axis, key, factor in (
                    (axes[0, column], f"eval_nfe_speedup_{name}", 1),
                    (axes[1, column], f"eval_accuracy_{name}", 100),
                ):
                    values = [row.get(key, math.nan) * factor for row in ordered]
                    axis.plot(compute, values, color=f"C{number}", marker="o", markersize=3, linewidth=1.2, label=label)
        axes[0, column].set_title(title(name))
        axes[1, column].set_xlabel("training: documents, noisy copies counted")
    axes[0, 0].set_ylabel("NFE speed-up over plain decoding")
    axes[1, 0].set_ylabel("accuracy, %")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(variants)))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="all", choices=[*STUDIES, "all"])
    parser.add_argument("--list", action="store_true", help="name the studies and their variants, and stop")
    parser.add_argument("--recipe", default="recipes/word-problems-sbd.yaml")
    parser.add_argument("--base", choices=BASES, default="recipe", help="what the variants vary")
    parser.add_argument("--steps", type=int, default=500, help="of the recipe itself")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="train only these; report all that there are")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--evaluations", type=int, default=5, help="how many, besides the one before training")
    parser.add_argument("--task", default="word-problems")
    parser.add_argument("--limit", type=int, default=100, help="examples of each evaluation")
    parser.add_argument("--gammas", type=float, nargs="+", default=GAMMAS)
    parser.add_argument(
        "--answer-share", type=float, default=0.6, help="share of a document's tokens that are the answer"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for every variant")
    parser.add_argument("--out", default="runs/ablations", help="folder of runs, tables and pictures")
    parser.add_argument("--only-report", action="store_true", help="train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()

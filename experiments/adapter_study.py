"""Compare changes to the training of an adapter on the future block, at equal training tokens, by what its drafts save.

    python experiments/adapter_study.py --variants loss --seeds 0 --out experiments/results/adapter.jsonl
    python experiments/adapter_study.py --report --out experiments/results/adapter.jsonl

Each variant is `recipes/smollm2-lossless.yaml`, as it was with cross entropy, with a few other values, on the same
conversations in the same order. Its drafts are then checked on prompts that training does not have: exact mode with whole
blocks of `--block-size` (`--drafts fixed`), no copies, greedy. The figure is tokens a pass, without the prefill. Each line
of the file is a variant, a seed and a task. What is there is not run again; an interrupted training resumes.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEFORE: dict[str, Any] = {"training.masked_loss": "cross_entropy", "adapter.target_modules": "all-linear"}
"""The recipe as it was when its changes were compared. The best loss and the cheapest layers are its own since then."""
UNO: dict[str, Any] = {"training.noise": "uniform", "training.block_attention": "causal"}

# Layers that read a norm's output: two inputs in a transformer layer
READING = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]

# One change at a time, by what they change. The rate of learning goes with alpha / r, which acts as one.
STUDIES: dict[str, dict[str, dict[str, Any]]] = {
    "recipe": {"as it is": {}},
    "loss": {
        "total variation": {"training.masked_loss": "total_variation"},
    },
    "scale": {
        "alpha / r 16": {"adapter.alpha": 512},
        "alpha / r 16, rate 3e-4": {"adapter.alpha": 512, "training.learning_rate": 3e-4},
        "alpha / r 64, rate 1e-4": {"adapter.alpha": 2048, "training.learning_rate": 1e-4},
        "rate 2e-3": {"training.learning_rate": 2e-3},
    },
    "blocks": {
        "2, 4, 8, growing": {"training.block_sizes": [2, 4, 8], "training.block_size_curriculum": 0.7},
        "all masked": {"training.full_mask_share": 1.0},
    },
    "cheaper": {  # fewer products in a pass
        "total variation, no O, down": {"training.masked_loss": "total_variation", "adapter.target_modules": READING},
        "total variation, no O, down, layers 10 and up": {
            "training.masked_loss": "total_variation",
            "adapter.target_modules": rf".*\.[12]\d\..*({'|'.join(READING)})",
        },
    },
    "layers": {"Q, K, V alone": {"adapter.target_modules": ["q_proj", "k_proj", "v_proj"]}},
    "together": {
        "total variation, alpha / r 16": {"training.masked_loss": "total_variation", "adapter.alpha": 512},
    },
    "form": {
        "mask, causal": {"training.block_attention": "causal"},
        "uniform, bidirectional": {"training.noise": "uniform"},
        "uniform, causal": UNO,
    },
}
TASKS: dict[str, list[str]] = {"instructions": [], "humaneval": ["--allow-code-execution"]}


def main() -> None:
    """Train and check what is missing, or report."""
    options = parse_options()
    lines = read_lines(options.out)
    if not options.report:
        done = {(line["variant"], line["seed"], line["task"]) for line in lines}
        wanted = {name: values for study in options.variants for name, values in STUDIES[study].items()}
        for seed in options.seeds:
            for name, values in wanted.items():
                missing = [task for task in TASKS if (name, seed, task) not in done]
                if missing:
                    folder = train(options, name, values, seed)
                for task in missing:
                    line = {
                        "variant": name,
                        "seed": seed,
                        "steps": options.steps,
                        **check(options, folder, task),
                    }
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
        lines = read_lines(options.out)
    print("\n".join(report_lines(lines)))


def train(options: argparse.Namespace, name: str, values: dict[str, Any], seed: int) -> Path:
    """Train a variant, unless it is trained already, and return its folder."""
    folder = Path(options.runs) / "".join(c if c.isalnum() else "-" for c in f"{name} {seed}")
    values = (
        BEFORE
        | values
        | {
            "training.max_steps": options.steps,
            "training.seed": seed,
            "training.data_seed": seed,
        }
    )
    setblock("train", str(ROOT / "recipes/smollm2-lossless.yaml"), "--output", str(folder), *settings(values))
    return folder


def check(options: argparse.Namespace, folder: Path, task: str) -> dict[str, Any]:
    """Return what a variant's drafts save on a task."""
    said = setblock(
        *("evaluate", "--model", str(folder), "--task", task, *TASKS[task], "--limit", str(options.limit)),
        *("--method", "exact", "--drafts", "fixed", "--draft-lookup", "0", "--block-size", str(options.block_size)),
        *("--max-new-tokens", "96", "--batch-size", "16", "--json"),
    )
    found = json.loads(said)
    passes = found["passes"]["block"] + found["passes"]["commit"]
    return {
        "task": task,
        "prompts": found["num_examples"],
        "block_size": options.block_size,
        "tokens_per_pass": (found["num_tokens"] - found["num_examples"]) / passes,
        "same_text": found["identical_to_ntp"],
    }


def settings(values: dict[str, Any]) -> list[str]:
    """Return values of a recipe as options of the command line."""
    return [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def setblock(*arguments: str) -> str:
    """Run the command line in another process, and return what it prints. What it says of its progress is shown."""
    command = [sys.executable, "-m", "setblock", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none where there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def report_lines(lines: list[dict[str, Any]]) -> list[str]:
    """Return a table: tokens a pass of each variant, the mean of its seeds and each of them."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["variant"]][line["task"]].append(line["tokens_per_pass"])
    rows = [f"| variant | {' | '.join(TASKS)} |", f"|---|{'---|' * len(TASKS)}"]
    for variant, by_task in found.items():
        rows.append(f"| {variant} | {' | '.join(cell(by_task[task]) for task in TASKS)} |")
    return rows


def cell(values: list[float]) -> str:
    """Return the mean of seeds, and each where there are several."""
    each = f" ({', '.join(f'{value:.3f}' for value in values)})" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.3f}{each}" if values else ""


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--variants", nargs="+", choices=STUDIES, default=list(STUDIES), metavar="STUDY", help=", ".join(STUDIES))
    add("--seeds", type=int, nargs="+", default=[0])
    add("--steps", type=int, default=60, help="of training, two conversations each")
    add("--limit", type=int, default=32, help="prompts of a task to check with")
    add("--block-size", type=int, default=8)
    add("--runs", default="runs/adapter-study", help="folder of the trained models")
    add("--out", type=Path, required=True, help="a JSON Lines file")
    add("--report", action="store_true", help="print the table, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Every command and program of the guides runs, in seconds: see `SHORTER`. `NOT_RUN` has those that can't, with the reason.

A page's blocks run in their order, in one folder and this process. A command of `setblock` runs as the command line does.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fenced import Block, blocks, start_and_stop
from setblock import load
from setblock.cli.app import app

ROOT = Path(__file__).parent.parent
PROMPT = "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"

SHORTER = (
    (r"models/smollm2-(orders|records)\b", "runs/records"),  # the bundled model in place of others
    (r"\bsmollm2-base\b", "runs/mine"),
    (r"\bQwen/Qwen3-8B\b", "qwen3-8b"),  # the roofline's own table in place of the hub's
    (r"setblock serve", "setblock serve --port 0"),
    (r"--limit \d+", "--limit 2 --max-new-tokens 8"),
    (r"(setblock (?:sweep|calibrate) (?!.*--limit)(?!.*--dry-run))", r"\1--limit 2 --max-new-tokens 8 "),
    (r"(setblock calibrate)(?!.*--tolerance)", r"\1 --tolerance any"),
    (r"--tolerance \S+", "--tolerance tokens=90 --confidence 0.5"),  # one that few examples can show
    (r"^(setblock data regenerate .*--max-new-tokens) \d+", r"\1 64"),  # it leaves out answers that don't end
    (r"^(?!setblock data)(.*--max-new-tokens) \d{2,}", r"\1 8"),
    (r"(setblock (?:compare|generate)(?= --model )(?!.*--max-new-tokens))", r"\1 --max-new-tokens 8"),
    (r"--count \d+", "--count 2 --max-new-tokens 8"),
    (r"data\.documents=\d+", "data.documents=20"),
    (
        r"(setblock train recipes/\S+)",
        r"\1 --set model.path=runs/mine --set data.documents=20 --set data.evaluation.documents=2",
    ),
    (r"(setblock train \S+)", r"\1 --set training.max_steps=1 --set training.use_cpu=true --set training.bf16=false"),
)
"""What is made short before a command of `setblock` runs: a pattern, and what takes its place."""

NOT_RUN = {
    r"pip install|python3 -m venv": "installs packages; CI installs the built wheel in a new environment",
    r"setblock fetch": "downloads a model; the README's test does",
    r"setblock generate .*--model LiquidAI/": "downloads a model: tests/decoding/test_recurrent.py runs tiny ones of its kind",
    r"python -m setblock.integrations.lm_eval": "reads data sets of the hub",
    r"vllm serve|ray start": "needs vLLM, in an environment of its own: `make test-vllm`",
    r"torchrun|accelerate launch": "needs several GPUs",
    r"hf upload": "publishes a model on the hub",
    r"python (benchmarks|contrib)/|make bench": "takes minutes to hours: tests/test_benchmarks.py runs them in miniature",
    r"python experiments/": "a finished study: its program is at a tag",
    r"python examples/(first|paper_tables|sweep_figure)": "takes minutes, and each has its own test",
    r"setblock train .*--dry-run": "reads a config of the hub: tests/training/test_dry_run.py runs it on others",
    r"setblock (export .*--uno|generate .*--adapter)": "needs an adapter of UNO's form: tests/model/adapter/test_uno.py",
    r"setblock train .*flex_attention": "needs a GPU",
    r"setblock merge": "needs a run that trained an adapter: tests/training/test_publishing.py",
}
"""Commands that can't run here: a pattern, and why."""

PROGRAMS_NOT_RUN = {
    "vllm.md": "needs a server of vLLM: `make test-vllm`",
    "samplers.md": "tests/decoding/samplers/test_own_sampler.py runs them",
    "tasks.md": "tests/test_contributing.py runs it",
    "transformers.md": "tests/integrations/test_transformers_page.py runs them",
}
"""Pages whose programs don't run here, and why."""

BEFORE = {
    "calibration.md": (
        "setblock sweep --model runs/mine --grid gamma=0.03 --split validation --output runs/sweep.jsonl",
    )
}
"""What a page takes for granted that another page does."""

AFTER = {"data.md": ("runs/sums/config.json", "runs/from-tokens/config.json")}
"""What a page's commands have made."""

NAV = yaml.load((ROOT / "mkdocs.yml").read_text().replace("!ENV", ""), yaml.SafeLoader)["nav"]
GUIDES = sorted(
    ROOT / "docs" / page
    for section in NAV
    for entry in (section.get("Get started") or section.get("Guides") or section.get("Concepts") or ())
    for page in entry.values()
    if (ROOT / "docs" / page).is_file() and page != "tour.md"  # tests/test_readme.py runs it as it is written
)


def reason_not_to_run(command: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


def shortened(command: str) -> str:
    for pattern, short in SHORTER:
        command = re.sub(pattern, short, command)
    return command


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled") / "model"
    load(device="cpu").save(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pages take for granted: models, recipes, tasks and examples."""
    for name in ("MODEL", "runs/mine", "runs/records"):
        shutil.copytree(bundled, tmp_path / name)
    for name in ("examples", "models", "recipes", "tasks"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs" / "experiments").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    plugin = ROOT / "plugins" / "setblock-vllm" / "src"  # which vLLM's page installs
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return tmp_path


def write_recipe(page: list[Block], command: str, folder: Path) -> None:
    """Write the page's recipe under the name that a command gives it, with the bundled model in place of one of a hub."""
    for name in re.findall(r"\S+\.yaml", command):
        if not (folder / name).exists():
            shown = yaml.safe_load(next(block.content for block in page if block.language == "yaml"))
            recipe = {
                "data": {"source": "word-problems", "documents": 20},
                "training": {"output_dir": "runs/own"},
            } | shown
            if "path" in recipe["model"]:
                recipe["model"]["path"] = "runs/mine"
            if "documents" in recipe["data"]:
                recipe["data"]["documents"] = 20
            (folder / name).write_text(yaml.safe_dump(recipe))


def run_command(command: str) -> None:
    words = shlex.split(shortened(command))
    if words[0] in ("cat", "echo"):
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)
        return
    if words[:2] == ["python", "-c"]:
        subprocess.run([sys.executable, *words[1:]], check=True)
        return
    assert words[0] == "setblock", f"{command}: this test runs no other program; add it to NOT_RUN with the reason"
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}\n{done.exception!r}"


@pytest.mark.readme
@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_guide_runs(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = blocks(path)
    monkeypatch.setattr("setblock.server.app.serve", start_and_stop)
    names: dict[str, object] = {"__name__": "guide", "prompt": PROMPT}
    if "--output prompts.jsonl" not in path.read_text():
        (folder / "prompts.jsonl").write_text(f"{json.dumps({'prompt': PROMPT})}\n" * 4)
    pair = {"prompt": PROMPT, "completion": "#### 19"}
    (folder / "held-out.jsonl").write_text(f"{json.dumps(pair)}\n" * 2)
    for command in BEFORE.get(path.name, ()):
        run_command(command)
    with contextlib.ExitStack() as stack:
        for block in page:
            if block.language == "bash":
                for command in block.commands:
                    if reason_not_to_run(command) is None:
                        write_recipe(page, command, folder)
                        run_command(command)
            elif block.language == "python" and path.name not in PROGRAMS_NOT_RUN:
                names.setdefault("model", load("runs/mine", device="cpu"))
                run_program(block.content, names, stack)
    assert [made for made in AFTER.get(path.name, ()) if not (folder / made).is_file()] == []


def run_program(program: str, names: dict[str, object], stack: contextlib.ExitStack) -> None:
    if "llama_cpp" in program and not find_spec("llama_cpp"):
        return
    if "127.0.0.1:8000" in program:
        from server.live import serving

        name = re.search(r'model="([^"]+)"', program)
        live = stack.enter_context(serving(load(device="cpu"), name=name[1] if name else "word-problems"))
        program = program.replace("http://127.0.0.1:8000", live.url)
    exec(compile(program, "guide", "exec"), names)

"""The run of docs/train-8b.md, scaled down to a CPU, by the commands of that page: from files as a hub has them to a model that
decodes in blocks.

Eight layers of width 64, a vocabulary of 128,256, the recipe and the Accelerate file that are shipped, four processes on two
"nodes". What the page leaves to its reader is set on the command line.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from conftest import TEXTS
from setblock.cli.app import app
from setblock.data.tokenizer import train_tokenizer

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "train-8b.md"
VOCABULARY = 128_256
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
PORT = "29500"  # the page's


def hub_files(folder: Path) -> None:
    """A model as Llama 3.1's repository has it: bfloat16, in several files, a head of its own."""
    content = json.loads(train_tokenizer(TEXTS, vocab_size=400).backend_tokenizer.to_str())
    names = content["model"]["vocab"]
    content["added_tokens"] = []
    first = [*SPECIAL, *(f"<|reserved_special_token_{i}|>" for i in range(4, 255))]  # 0 to 3 are there
    names |= {f"<|unused_{i}|>": i for i in range(len(names), VOCABULARY - len(first))}
    content["added_tokens"] = [
        {"id": len(names) + i, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, name in enumerate(first)
    ]
    folder.mkdir()
    (folder / "made.json").write_text(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "made.json"), bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    )
    (folder / "made.json").unlink()
    assert len(tokenizer) == VOCABULARY
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=224,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="10MB")
    assert len(list(folder.glob("*.safetensors"))) > 1


def chats(path: Path) -> None:
    """Conversations as those of the recipe's data set."""
    lines = (
        {
            "messages": [
                {"role": "user", "content": f"What is {i} plus {i + 3}?"},
                {"role": "assistant", "content": f"{i} + {i + 3} = {2 * i + 3}"},
            ]
        }
        for i in range(200)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_command(beginning: str) -> list[str]:
    """The words of the first command of the page that begins so."""
    text = PAGE.read_text().replace("\\\n", " ")
    (line, *_) = (line for line in text.splitlines() if line.startswith(beginning))
    return shlex.split(line)


def environment(folder: Path) -> dict[str, str]:
    """This package first, one thread, and Accelerate's FSDP2 on CPUs in every process that starts."""
    (folder / "site").mkdir(exist_ok=True)
    patch = "from training.fsdp_on_cpu import allow_fsdp_on_cpu\nallow_fsdp_on_cpu()\n"
    (folder / "site" / "sitecustomize.py").write_text(patch)
    path = os.pathsep.join(map(str, (folder / "site", ROOT / "tests", ROOT / "src")))
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PATH": scripts, "HEAD": "127.0.0.1"}


def run(commands: Sequence[Sequence[str]], folder: Path) -> list[str]:
    """What commands print that run at the same time."""
    running = [
        subprocess.Popen(
            list(map(str, command)),
            env=environment(folder),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=900)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert not any(process.returncode for process in running), "\n".join(text[-3000:] for text in said)
    return said


def run_here(command: Sequence[str]) -> str:
    """What a command of `setblock` prints that runs in this process."""
    done = CliRunner().invoke(app, list(command[1:]))
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.stdout


@pytest.mark.readme
def test_the_page_leads_from_the_hubs_files_to_a_model_that_decodes_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_files(tmp_path / "model")
    chats(tmp_path / "chats.jsonl")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    small = {
        "model.path": "model",
        "model.attn_implementation": "sdpa",
        "data.source": "chats.jsonl",
        "data.row_length": 128,
        "training.output_dir": "run",
        "training.max_steps": 2,
        "training.save_steps": 1,
        "training.logging_steps": 1,
        "training.warmup_steps": 0,
        "training.learning_rate": 0.001,
        "training.per_device_train_batch_size": 1,
        "training.global_batch_size": 8,
        "training.use_cpu": "true",
    }
    settings = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    recipe = "recipes/llama-3.1-8b-lora.yaml"

    # 1. Know before you rent, and tokenise
    dry = page_command("setblock train recipes/llama-3.1-8b-sbd.yaml --dry-run")
    dry[dry.index("recipes/llama-3.1-8b-sbd.yaml")] = recipe
    monkeypatch.chdir(tmp_path)
    run_here([*dry, *settings])
    run_here(["setblock", "data", "tokenise", recipe, "--output", "tokens", "--processes", "2", *settings])

    # 2. Train on two machines, which are this one
    launch = page_command("accelerate launch --config_file recipes/accelerate/fsdp2.yaml --num_machines 4")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    values = {"4": "2", "32": "4", "$HEAD": "127.0.0.1", PORT: port, "recipe.yaml": recipe}
    launch = [values.get(word, word) for word in launch]
    nodes = [[str(rank) if word == "$RANK" else word for word in launch] + settings for rank in range(2)]
    first, second = run(nodes, tmp_path)
    assert first.count("saved to run") == 1
    assert "saved to" not in second, "one process speaks for all"

    # 3. An ordinary checkpoint, which is not the one that it began as, and decodes in blocks
    logs = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained, base = (AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto") for name in ("run", "model"))
    assert trained.dtype == base.dtype == torch.bfloat16
    found, before = trained.state_dict(), base.state_dict()
    assert found.keys() == before.keys()
    ends = json.loads((tmp_path / "run" / "generation_config.json").read_text())["eos_token_id"]
    assert len(ends) == 2, "the end of a text, and what closes a turn in the template"
    changed = [name for name, weight in found.items() if not torch.equal(weight, before[name])]
    layers = {name for name in found if "proj" in name}
    print(f"{len(changed)} of {len(found)} tensors changed; losses {[each['loss'] for each in logs if 'loss' in each]}")
    assert layers <= set(changed)
    assert [each["step"] for each in logs if "loss" in each] == [1, 2]
    limits = ["--method", "sbd", "--block-size", "8", "--min-new-tokens", "16", "--max-new-tokens", "16"]
    answer = json.loads(run_here(["setblock", "generate", "--model", "run", *limits, "--json", "What is 3 plus 6?"]))
    print(f"{answer['num_tokens']} tokens in {answer['num_block_forwards']} passes over blocks")
    assert answer["num_tokens"] == 16
    assert answer["num_block_forwards"] > 0

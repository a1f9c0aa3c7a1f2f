"""A model that is trained on chats ends its answers as it learned to: with the token that closes a turn in the template."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner

from data.conftest import CHATML, MARKED, chat
from families import tiny_model
from setblock import generate, load
from setblock.chat.template import closing_tokens
from setblock.cli.app import app
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel
from structure.templates import HERMES

END, CLOSING = 0, 3
CLOSE = "<|reserved_special_token_2|>"
TEMPLATE = CHATML.replace("eos_token", f"'{CLOSE}'")
MESSAGE = f"an answer will also end with '{CLOSE}' (id {CLOSING}), which closes it in the training data"


def run(*args: object) -> str:
    outcome = CliRunner().invoke(app, [str(arg) for arg in args])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def recipe_of(folder: Path, tokenizer: PreTrainedTokenizerBase, template: str, **more: Any) -> Path:
    """A base model whose tokenizer has a template that ends turns with another token than its configs know of."""
    tokenizer.chat_template = template
    model = tiny_model("llama", vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=128)
    SBDModel(model, tokenizer).save(folder / "base")
    (folder / "chats.jsonl").write_text(f"{json.dumps({'messages': chat('Hi', 'Yes.')})}\n" * 8)
    training = {
        "output_dir": str(folder / "run"),
        "block_sizes": [4],
        "logit_shift": True,
        "max_steps": 30,
        "learning_rate": 0.02,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    recipe = {"model": {"path": str(folder / "base")}, "data": {"source": str(folder / "chats.jsonl")}, **more}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**recipe, "training": training}))
    return path


@pytest.mark.parametrize("template", [TEMPLATE, MARKED.replace("eos_token + '\n'", f"'{CLOSE}'")])
def test_a_base_model_with_another_end_learns_to_stop(
    template: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    recipe = recipe_of(tmp_path, tokenizer, template)
    said = run("data", "inspect", recipe, "--json")
    labels = [each for each in json.loads(said[said.index("{") :])["clean"]["labels"] if each is not None]
    assert tokenizer.decode(labels) == f"Yes.{CLOSE}"
    assert run("train", recipe).count(MESSAGE) == 1
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["eos_token_id"] == [END, CLOSING]
    assert f"An answer ends with `<|endoftext|>` or `{CLOSE}`." in (tmp_path / "run" / "README.md").read_text()
    sbd = load(tmp_path / "run")
    assert sbd.end_of_text_ids == (END, CLOSING)
    for method in ("ntp", "exact"):
        answer = generate(sbd, "Hi", settings=DecodingSettings(method=method, max_new_tokens=20))
        assert (answer.text, answer.finish_reason) == ("Yes.", "stop")
    assert "an answer will also" not in run(
        "train", recipe, "--set", f"model.path={tmp_path / 'run'}", "--output", tmp_path / "b"
    )


def test_an_adapter_is_merged_into_a_model_that_ends_so(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = recipe_of(tmp_path, tokenizer, TEMPLATE, adapter={"r": 2, "keep_adapter": True})
    assert run("train", recipe, "--set", "training.max_steps=1").count(MESSAGE) == 1
    assert load(tmp_path / "run").end_of_text_ids == (END, CLOSING)
    run("merge", tmp_path / "run" / "sbd_adapter", "--output", tmp_path / "merged")
    assert load(tmp_path / "merged").end_of_text_ids == (END, CLOSING)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, ["<|endoftext|>"]),
        (TEMPLATE, [CLOSE]),
        (HERMES, ["<|endoftext|>"]),
        (None, []),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", []),
        # The end of the chat after its last turn, as Phi's templates have it
        (TEMPLATE + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}", [CLOSE]),
        # Another token after the last answer than after earlier ones, as gpt-oss's template has it
        (
            "{% for m in messages %}{{ '<|reserved_special_token_0|>' + m.role + m.content }}"
            f"{{{{ eos_token if loop.last else '{CLOSE}' }}}}{{% endfor %}}",
            ["<|endoftext|>"],
        ),
        # Two tokens, of which the last one is the turn's, as Command R's template has it
        (CHATML.replace("eos_token", f"'{CLOSE}' + eos_token"), ["<|endoftext|>"]),
        # Another one after a call, as Llama 3.1's template has it
        (
            "{% for m in messages %}{{ '<|reserved_special_token_0|>' + m.role + ' ' + m.content }}{% if m.tool_calls %}"
            f"{{{{ m.tool_calls | tojson + '{CLOSE}' }}}}{{% else %}}{{{{ eos_token }}}}{{% endif %}}{{% endfor %}}",
            ["<|endoftext|>", CLOSE],
        ),
    ],
)
def test_what_closes_a_turn(template: str | None, expected: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = template
    assert closing_tokens(tokenizer) == expected


def test_inspect_fills_rows_with_the_token_of_training(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = recipe_of(tmp_path, tokenizer, CHATML)
    ends = {"eos_token_id": [CLOSING, END]}
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(ends))
    more = ("--set", "training.complete_last_block=true", "--set", "training.block_sizes=[64]")
    shown = run("data", "inspect", recipe, "--json", *more)
    predicts = json.loads(shown[shown.index("{") :])["noisy"]["predicts"]
    assert predicts.count(CLOSING) > 32, "most of the block is behind the answer"

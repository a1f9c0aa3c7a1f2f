"""The recipes that come with the package: each is one, says where its values come from, and names files that are there."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.chat.messages import chat_of
from setblock.data.section import DataSection
from setblock.data.texts.chat import chat_pieces, use_chat_template
from setblock.errors import SetBlockError
from setblock.model.sbd_model import SBDModel
from setblock.training.recipe import load_recipe, parse_override
from setblock.training.run.train import recipe_rows

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("recipes/*.yaml"), *ROOT.glob("examples/*.yaml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    # On a machine without a GPU, Transformers allows bf16 only where a CPU is asked for.
    recipe, arguments = load_recipe(path, overrides={"training.use_cpu": True})
    assert arguments.output_dir == f"runs/{path.stem}"
    if recipe.data.chat_template is not None:
        assert (ROOT / recipe.data.chat_template).is_file()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("1e-4", 1e-4),
        ("2", 2),
        ("null", None),
        ("note", "note"),
    ],
)
def test_values_are_what_yaml_1_2_takes_them_for(text: str, value: object) -> None:
    """In YAML 1.1, `no` is false."""
    _, parsed = parse_override(f"a.b={text}")
    assert parsed == value
    assert type(parsed) is type(value)


def test_no_is_what_its_key_takes_it_for(tmp_path: Path) -> None:
    text = (
        (ROOT / "examples" / "tiny.yaml").read_text().replace("eval_strategy: steps", "eval_strategy: no\n  bf16: no")
    )
    (tmp_path / "recipe.yaml").write_text(text)
    _, arguments = load_recipe(tmp_path / "recipe.yaml")
    assert arguments.eval_strategy == "no"
    assert arguments.bf16 is False


def test_documents_are_no_longer_than_the_model_is_right_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """As with the scaled positions of Phi-3, whose config allows more than the attention plan."""
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Tom has 3 apples. " * 20}) + "\n")
    recipe: Any = SimpleNamespace(data=DataSection(source=str(tmp_path / "texts.jsonl")))
    sbd = tiny_sbd("llama", trained_tokenizer)
    monkeypatch.setattr(SBDModel, "context_length", 40)
    with pytest.raises(SetBlockError, match=r"40.*too_long"):
        recipe_rows(recipe, sbd)


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/accelerate/*.yaml")), ids=lambda path: path.stem)
def test_accelerate_can_read_its_files(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    assert config.num_processes == 8
    assert config.mixed_precision == "bf16"
    assert set(yaml.safe_load(path.read_text())) >= {"distributed_type", "num_machines"}


@pytest.mark.parametrize("name", ["llama-3", "chatml"])
def test_templates_mark_what_the_assistant_says(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    end = {"llama-3": "<|eot_id|>", "chatml": "<|im_end|>"}[name]
    use_chat_template(str(ROOT / "recipes" / "templates" / f"{name}.jinja"), tokenizer)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Three and four?"},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "And one?"},
        {"role": "assistant", "content": "Eight."},
    ]
    pieces = [(segments[0][0], carries_loss) for segments, carries_loss in chat_pieces(tokenizer, chat_of(messages))]
    assert [text for text, carries_loss in pieces if carries_loss] == [f"Seven.{end}", f"Eight.{end}"]
    text = "".join(text for text, _ in pieces)
    requested = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert text.startswith(requested), "decoding begins where the answer did in training"

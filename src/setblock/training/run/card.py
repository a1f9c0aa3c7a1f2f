"""Write the model card: the README of a trained checkpoint, from the run that made it.

Knows what a run leaves in its folder: recipe, metrics, config. Knows nothing of training or of the hub.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from setblock.model.loading.named import NAMED_MODELS, is_named
from setblock.training.run.checkpoints import without_nulls
from setblock.training.trainer.metrics import read_metrics

CARD_FILE = "README.md"
_PACKAGES = ("setblock", "torch", "transformers", "datasets", "tokenizers", "peft")


def model_card(folder: Path, *, recipe: Mapping[str, Any]) -> ModelCard:
    """Return the card of a checkpoint.

    Args:
        folder: the checkpoint, with what its run has logged.
        recipe: what was trained, as `Recipe` dumps it. Of local paths only the last part gets into the card; the checkpoint's
            own is given from the current folder on.
    """
    recipe = _without_folders(without_nulls(recipe))
    base = recipe["model"].get("path") or ""
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["setblock", "set-block-decoding"],
        base_model=base if "/" in base else None,  # of a local folder the name alone is left
        datasets=sorted(set(_hub_data_sets(recipe["data"]))) or None,
    )
    path, here = folder.resolve(), Path.cwd()
    name = str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name
    parts = ["\n".join(["---", data.to_yaml(), "---"]), *_body(folder, recipe, name)]
    return ModelCard("\n\n".join(parts) + "\n")


def _body(folder: Path, recipe: Mapping[str, Any], name: str) -> Iterator[str]:
    facts = json.loads((folder / "config.json").read_text()).get("setblock")
    start = recipe["model"].get("path") or "random weights"
    if is_named(start):
        start = f"{start} ({NAMED_MODELS[start].origin})"
    yield f"# {PurePath(name).name}"
    if facts is None:
        yield f"Trained by next-token prediction from {start}, with [setblock](https://pypi.org/project/setblock/)."
    else:
        sizes = ", ".join(map(str, facts["block_sizes"]))
        yield (
            f"Trained for set block decoding (arXiv 2509.04185) from {start}, with blocks of {sizes} tokens. setblock "
            "decodes several tokens per forward pass, and any other library for causal LMs decodes one."
        )
        yield f"```bash\npip install setblock\nsetblock generate --model {shlex.quote(name)} {shlex.quote(_PROMPT)}\n```"
        yield f"```python\n{_program(name, is_chat=(folder / 'chat_template.jinja').is_file())}\n```"
    figures = _figures(folder)
    if figures:
        lines = [f"| {key} | {value:.4g} |" for key, value in figures.items()]
        head = ["## Figures", "", "The last values that the run logged. Losses are in nats per token.", ""]
        yield "\n".join([*head, "| figure | value |", "|---|---|", *lines])
    yield f"## Recipe\n\n```yaml\n{yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).strip()}\n```"
    yield "## Versions\n\n" + ", ".join(f"{package} {found}" for package, found in _versions())


_PROMPT = "Name three fruits and their colours."


def _program(name: str, *, is_chat: bool) -> str:
    """Return a program of Transformers that answers a prompt by the checkpoint, one token per pass and in blocks."""
    inputs = f'tokenizer("{_PROMPT}", return_tensors="pt")'
    if is_chat:
        inputs = (
            f'tokenizer.apply_chat_template(\n    [{{"role": "user", "content": "{_PROMPT}"}}],\n'
            '    add_generation_prompt=True,\n    return_dict=True,\n    return_tensors="pt",\n)'
        )
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'name = "{name}"\n'
        "tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name)\n"
        f"inputs = {inputs}\n"
        "tokens = model.generate(**inputs, max_new_tokens=256)  # one token per pass\n"
        "# in blocks, by setblock:\n"
        "tokens = model.generate(**inputs, max_new_tokens=256, custom_generate=name, trust_remote_code=True)\n"
        'print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))'
    )


def _figures(folder: Path) -> dict[str, float]:
    """Return the last value of each figure of the run, and the steps it took."""
    figures: dict[str, float] = {}
    for entry in read_metrics(folder):
        figures["step"] = entry["step"]
        for key, value in entry.items():
            if key.endswith("_loss") or key.startswith(("eval_nfe_speedup", "eval_accuracy")):
                figures[key] = value
    return figures


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:  # an extra that is not installed
            continue


def _hub_data_sets(section: Mapping[str, Any]) -> Iterator[str]:
    for source in [section, *(section.get("mixture") or ())]:
        name = source.get("source")
        if name and name.count("/") == 1 and not Path(name).exists() and not PurePath(name).suffix:
            yield name


def _without_folders(value: Any) -> Any:
    """Return a recipe with only the last part of each local path: where a file lay is private."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(each) for each in value]
    if isinstance(value, str) and (value.startswith(("/", "~", ".")) or ("/" in value and Path(value).exists())):
        return PurePath(value).name
    return value

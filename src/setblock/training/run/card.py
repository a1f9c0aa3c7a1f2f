"""The model card: the README of a trained checkpoint, written from the recipe, metrics and config in the run's folder."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from setblock.model.loading.named import NAMED_MODELS, is_named
from setblock.training.run.checkpoints import without_nulls
from setblock.training.run.held_out import held_out_scores
from setblock.training.trainer.metrics import read_metrics

CARD_FILE = "README.md"
_PACKAGES = ("setblock", "torch", "transformers", "datasets", "tokenizers", "peft")


def model_card(folder: Path, *, recipe: Mapping[str, Any]) -> ModelCard:
    """Return the card of a checkpoint in `folder`, with the metrics that its run logged there. `recipe` is as `Recipe`
    dumps it. The card names local paths by their last part only, and the checkpoint by its path from the current
    folder."""
    recipe = _without_folders(without_nulls(recipe))
    base = recipe["model"].get("path") or ""
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["setblock", "set-block-decoding"],
        base_model=base if "/" in base else None,  # only the name of a local folder is kept
        datasets=sorted(set(_hub_data_sets(recipe["data"]))) or None,
    )
    path, here = folder.resolve(), Path.cwd()
    name = str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name
    start = base or "random weights"
    card: ModelCard = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        title=path.name,
        folder=name,
        quoted=shlex.quote(name),
        prompt="Name three fruits and their colours.",
        start=f"{start} ({NAMED_MODELS[start].origin})" if is_named(start) else start,
        block_sizes=(json.loads((folder / "config.json").read_text()).get("setblock") or {}).get("block_sizes"),
        ends=list(_ends(folder)),
        is_chat=(folder / "chat_template.jinja").is_file(),
        figures=_figures(folder),
        held_out=held_out_scores(read_metrics(folder)),
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).strip(),
        versions=list(_versions()),
    )
    return card


def _ends(folder: Path) -> Iterator[str]:
    """Yield the tokens that end an answer, by their spelling, or by their ids where they are no added tokens."""
    configs = (folder / name for name in ("generation_config.json", "config.json"))
    found = (json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") for path in configs if path.is_file())
    ids: Any = next((each for each in found if each is not None), [])
    tokenizer = folder / "tokenizer.json"
    added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"] if tokenizer.is_file() else []
    spelled = {token["id"]: token["content"] for token in added}
    for each in ids if isinstance(ids, list) else [ids]:
        yield str(spelled.get(each, each))


def _versions() -> Iterator[str]:
    """Yield the versions of the installed packages of interest, looked up by name: reading the metadata of all packages
    takes a fifth of a second."""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _figures(folder: Path) -> dict[str, float]:
    """Return the last value of each metric of the run, and the steps it took."""
    last: dict[str, float] = {}
    for entry in read_metrics(folder):
        last |= entry
    shown = ("eval_nfe_speedup", "eval_accuracy", "eval_mean_token_accuracy")
    return {key: each for key, each in last.items() if key == "step" or key.endswith("_loss") or key.startswith(shown)}


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

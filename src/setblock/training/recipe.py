"""The recipe: one YAML file that says what to train, on what, and how."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from pydantic import Field, ValidationError, model_validator

from setblock.data.section import DataSection
from setblock.errors import SetBlockError, converted, did_you_mean, fault_of, prefixed
from setblock.section import UNKNOWN_KEY, Section
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.yaml_loader import YAMLLoader, read_yaml


class ModelSection(Section):
    """The model to start from: a checkpoint, or a config and a tokenizer trained on the recipe's data."""

    path: str | None = Field(None, description="what to start from: a folder, a hub id or a name, such as `bundled`")
    config: dict[str, Any] | None = Field(None, description="a Transformers config with model_type, for random weights")
    vocab_size: int | None = Field(None, description="with config: size of the tokenizer that is trained on the data")
    seed: int = Field(0, description="with config: seed of the random weights")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="with path: type of the weights, in training and of the result; null: train in float32, or with an adapter "
        "in the checkpoint's type, and save in the checkpoint's type",
    )
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = Field(
        None, description="null: the fastest one that is right for the model; flex_attention: for long rows, on a GPU"
    )
    quantization: Literal["nf4"] | None = Field(
        None, description="with an adapter, on a GPU: hold the frozen weights in four bits"
    )

    @model_validator(mode="after")
    def _one_start(self) -> "ModelSection":
        for name in ("dtype", "quantization"):
            if self.config is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} goes with path, not with config")
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path or config")
        if self.config is not None and ("model_type" not in self.config or self.vocab_size is None):
            raise ValueError("config needs a model_type, and vocab_size next to config")
        return self


class DecodingEvaluationSection(Section):
    """The periodic decoding of a few held-out examples, one token a pass and in blocks, which shows how the speed
    grows."""

    task: str = Field("word-problems", description="a task of `setblock evaluate`; its validation split is used")
    allow_code_execution: bool = Field(  # a permission, which does not change the training
        False, exclude=True, description="run the programs that the model writes for a coding task"
    )
    limit: int = Field(32, ge=1, description="how many examples")
    every: int = Field(250, ge=1, description="optimiser steps between evaluations; one comes before the first step")
    gammas: tuple[float, ...] = Field((0.1,), min_length=1, description="entropy bounds to decode with")
    exact: bool = Field(True, description="also decode in method exact")
    block_size: int | None = Field(None, ge=1, description="null: the default of decoding")
    max_new_tokens: int | None = Field(None, ge=1, description="null: the default of decoding")
    batch_size: int = Field(32, ge=1, description="examples decoded at once")


class Recipe(Section):
    """A whole recipe file. `training` has the fields of `SBDConfig`."""

    model: ModelSection
    data: DataSection
    training: dict[str, Any]
    adapter: AdapterSection | None = None
    # Excluded from the run's record: a run may resume with other evaluations.
    evaluate_decoding: DecodingEvaluationSection | None = Field(None, exclude=True)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if self.adapter is not None and self.model.path is None:
            raise ValueError("adapter needs model.path: an adapter on random weights is useless")
        if self.adapter is None and self.model.quantization is not None:
            raise ValueError("model.quantization needs an adapter: weights in four bits can't be trained themselves")
        return self


def load_recipe(path: str | Path, *, overrides: Mapping[str, Any] | None = None) -> tuple[Recipe, SBDConfig]:
    """Read and check a recipe, a YAML file, or raise `SetBlockError` if it can't be read, or a key or value in it is not valid.
    `overrides` are values to replace, by dotted key: `{"training.learning_rate": 1e-4}`."""
    path = Path(path)
    return checked_recipe(path, read_yaml(path, what="recipe"), overrides=overrides or {})


def checked_recipe(path: Path, content: Any, *, overrides: Mapping[str, Any]) -> tuple[Recipe, SBDConfig]:
    """Check the content of a file, as `load_recipe` does; `path` names it in messages."""
    if not isinstance(content, dict):
        raise SetBlockError(f"recipe {path} must be a mapping with the keys {', '.join(Recipe.model_fields)}")
    for key, value in overrides.items():
        _override(content, key, value)
    with prefixed(f"recipe {path}"):
        try:
            recipe = Recipe.model_validate(content)
        except ValidationError as error:
            raise SetBlockError(_first_problem(error)) from error
        arguments = _training_arguments(recipe.training)
        _refuse_misfits(recipe, arguments)
    return recipe, arguments


def _refuse_misfits(recipe: Recipe, arguments: SBDConfig) -> None:
    """Raise `SetBlockError` for values that are wrong only in combination, and for fields of the training section that
    recipes don't support."""
    start, data, output = recipe.model.path, recipe.data, arguments.output_dir
    if start is not None and Path(start).resolve() == Path(output).resolve():
        raise SetBlockError(f"training.output_dir must not be model.path itself, {start!r}")
    if recipe.adapter is not None and recipe.adapter.only_noisy and arguments.objective == "ntp":
        raise SetBlockError(
            "adapter.only_noisy trains nothing with training.objective ntp: set one of the two differently"
        )
    if arguments.push_to_hub:
        upload = f'`hf upload REPOSITORY {output} --exclude "checkpoint-*"`'
        raise SetBlockError(f"training.push_to_hub: nothing would be pushed; run {upload} after the training")
    if data.too_long == "truncate" and arguments.complete_last_block:
        both = "data.too_long: truncate and training.complete_last_block exclude each other"
        raise SetBlockError(f"{both}: the model would learn that a text ends where it was cut")


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value, read as YAML, of `section.key=value`, or raise `SetBlockError` for another form."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise SetBlockError(f"an override must be of the form section.key=value, not {text!r}")
    with prefixed(f"the value of override {key!r} is not YAML", yaml.YAMLError):
        return key, yaml.load(value, Loader=YAMLLoader)


def _override(content: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise SetBlockError(f"can't override {key!r}: {section!r} is not a section")
    content[last] = value


def _training_arguments(training: dict[str, Any]) -> SBDConfig:
    known = {field.name for field in dataclasses.fields(SBDConfig) if field.init}
    types = get_type_hints(SBDConfig)
    checked = {}
    for key, value in training.items():
        if key not in known:
            raise SetBlockError(f"unknown key 'training.{key}'{did_you_mean(key, known)}")
        checked[key] = converted(f"training.{key}", value, types[key])
    with prefixed("training", (ValueError, TypeError, ImportError)):
        return SBDConfig(**checked)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == UNKNOWN_KEY:
        whole = ".".join(filter(None, (where, problem["ctx"]["key"])))
        return f"unknown key {whole!r}{problem['ctx']['near'] or '; there are ' + problem['ctx']['known']}"
    if problem["type"] == "missing":
        return f"missing key {where!r}"
    return fault_of(where or "top level", problem)

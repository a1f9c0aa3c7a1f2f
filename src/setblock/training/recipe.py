"""A recipe: one YAML file that says what to train, on what, and how.

Knows the shape of the file. Knows nothing of models or training loops.
"""

import dataclasses
import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from setblock.data.word_problems import Split
from setblock.errors import SetBlockError
from setblock.training.config import SBDConfig


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(_Section):
    """What to start from: a checkpoint, or a config and a tokenizer trained on the recipe's data."""

    path: str | None = Field(None, description="a checkpoint's folder or hub id to start from")
    config: dict[str, Any] | None = Field(
        None, description="a Transformers config, with model_type, to start from nothing"
    )
    vocab_size: int | None = Field(None, description="with config: ids of the tokenizer that is trained on the data")
    seed: int = Field(0, description="with config: seed of the random weights")

    @model_validator(mode="after")
    def _one_start(self) -> "ModelSection":
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path or config")
        if self.config is not None and ("model_type" not in self.config or self.vocab_size is None):
            raise ValueError("config needs a model_type in it and a vocab_size beside it")
        return self


class DataSection(_Section):
    """What to train on."""

    source: Literal["word-problems"] = "word-problems"
    split: Split = "train"
    documents: int = Field(ge=1, description="how many documents")
    seed: int = 0
    row_length: int | None = Field(
        None, ge=2, description="pack documents into rows this long; null: a row each, unpacked"
    )
    evaluation_documents: int = Field(0, ge=0, description="documents of the validation split to evaluate on")


class Recipe(_Section):
    """A whole recipe file. `training` holds the fields of `SBDConfig`."""

    model: ModelSection
    data: DataSection
    training: dict[str, Any]


def load_recipe(path: str | Path, *, overrides: dict[str, Any] | None = None) -> tuple[Recipe, SBDConfig]:
    """Read and check a recipe.

    Args:
        path: a YAML file.
        overrides: fields of its `training` section to replace.

    Raises:
        SetBlockError: the file can't be read, or a key or value in it is not valid.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SetBlockError(f"can't read recipe {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SetBlockError(f"recipe {path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise SetBlockError(f"recipe {path}: {_first_problem(error)}") from error
    training = {**recipe.training, **(overrides or {})}
    known = {field.name for field in dataclasses.fields(SBDConfig) if field.init}
    for key in training:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise SetBlockError(f"recipe {path}: unknown key 'training.{key}'{hint}")
    try:
        return recipe, SBDConfig(**training)
    except (ValueError, TypeError) as error:
        raise SetBlockError(f"recipe {path}: training: {' '.join(str(error).split())}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {where!r}"
    if problem["type"] == "missing":
        return f"missing key {where!r}"
    return f"{where or 'top level'}: {problem['msg'].removeprefix('Value error, ')}"

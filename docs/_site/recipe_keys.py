"""Write the reference of recipes: every key, its type, default and meaning, from the classes that read them."""

import dataclasses
import inspect
import json
import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def page() -> str:
    """Return the page of all sections of a recipe."""
    from setblock.data.section import DataSection, EvaluationSection, SourceSection
    from setblock.training.recipe import ModelSection, Recipe

    sections: list[tuple[str, type[BaseModel]]] = [
        ("model", ModelSection),
        ("data", DataSection),
        ("data.mixture", SourceSection),
        ("data.evaluation", EvaluationSection),
    ]
    others = [
        (name, each) for name in ("adapter", "evaluate_decoding") for each in [section_of(Recipe.model_fields[name])]
    ]
    parts = [
        "# Recipe keys",
        "A recipe is a YAML file with these sections. [Recipes](../recipes.md) explains how to write one. "
        "An unknown key is an error.",
    ]
    for title, section in [*sections, *others]:
        parts += [f"## {title}", inspect.getdoc(section) or "", table(section)]
    return "\n\n".join([*parts, *training()]) + "\n"


def section_of(field: FieldInfo) -> type[BaseModel]:
    """Return the class of an optional section."""
    sections: list[type[BaseModel]] = [each for each in get_args(field.annotation) if each is not type(None)]
    return sections[0]


def table(section: type[BaseModel]) -> str:
    """Return a table with a row for each key."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        default = "required" if field.is_required() else f"`{shown(field.default)}`"
        rows.append(f"| `{name}` | {type_name(field.annotation)} | {default} | {cell(field.description or '')} |")
    return "\n".join(rows)


def training() -> list[str]:
    """Return what the section `training` adds to Transformers' own arguments."""
    from transformers import TrainingArguments

    from setblock.training.config import SBDConfig
    from setblock.training.inputs.noising import Noising

    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    meanings = attributes(SBDConfig) | attributes(Noising)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(SBDConfig):
        if field.name in theirs:
            continue
        make: Any = field.default_factory
        default = field.default if make is dataclasses.MISSING else make()
        rows.append(f"| `{field.name}` | {type_name(field.type)} | `{shown(default)}` | {cell(meanings[field.name])} |")
    return [
        "## training",
        "Every field of Transformers' `TrainingArguments` is a key of this section, and so is each of these:",
        "\n".join(rows),
    ]


def attributes(owner: type) -> dict[str, str]:
    """Return name -> meaning, from the section `Attributes` of a docstring."""
    listed = (inspect.getdoc(owner) or "").partition("Attributes:\n")[2]
    return dict(re.findall(r"^    (\w+): ((?:.|\n     )*)", listed, flags=re.MULTILINE))


def type_name(annotation: Any) -> str:
    """Return a type as a reader of YAML sees it."""
    return f"`{kinds(annotation)}`"


def kinds(annotation: Any) -> str:
    """Return the kinds of value that a type has in YAML, with `or` between them."""
    if get_origin(annotation) is Literal:
        return ", ".join(repr(each) for each in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(kinds(each) for each in get_args(annotation))
    if annotation in (None, NoneType):
        return "null"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return re.sub(r"\b[a-z_]+\.(?=\w)", "", str(annotation)).replace("None", "null").replace("|", "or")


def shown(value: Any) -> str:
    """Return a default as YAML has it."""
    return str(value) if isinstance(value, list | str) else json.dumps(value, default=str)


def cell(text: str) -> str:
    """Return text that can be in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

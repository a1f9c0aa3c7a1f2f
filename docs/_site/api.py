"""Write a page for each public package: what its `__all__` names, each from its docstring."""

import importlib
import inspect
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGES = (
    "setblock",
    "setblock.data",
    "setblock.decoding.samplers",
    "setblock.engine",
    "setblock.evaluation",
    "setblock.structure",
    "setblock.training",
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages."""
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/{package}.md", content=page(package)))
    return files


def page(package: str) -> str:
    """Return the page of all names of one package."""
    module = importlib.import_module(package)
    about = re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", inspect.getdoc(module) or "")
    names = sorted(module.__all__, key=lambda name: (name.isupper(), name.lower()))
    return "\n\n".join([f"# {package}", about, *(f"::: {package}.{name}" for name in names)]) + "\n"

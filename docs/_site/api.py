"""Write a page for each public package: what its `__all__` names, each from its docstring."""

import importlib
import inspect
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
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
    """Return the page of all names of one package.

    Raises:
        PluginError: a name, or a public method of one, has no docstring.
    """
    module = importlib.import_module(package)
    about = re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", inspect.getdoc(module) or "")
    parts = [f"# {package}", about]
    for name in sorted(module.__all__, key=lambda name: (name.isupper(), name.lower())):
        value = getattr(module, name)
        if lacking := undocumented(value):
            raise PluginError(f"no docstring: {', '.join(f'{package}.{name}{each}' for each in lacking)}")
        parts.append(f"::: {package}.{name}")
    return "\n\n".join(parts) + "\n"


def undocumented(value: object) -> list[str]:
    """Return what of a name has no docstring: "" for itself, ".method" for a public method or property."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return []
    found = [] if inspect.getdoc(value) else [""]
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
            found += [] if inspect.getdoc(member) else [f".{name}"]
    return found

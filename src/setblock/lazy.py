"""Lazy imports of a package's public names: PyTorch and Transformers take seconds, and `--help` needs neither."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, available: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported from its modules on first use. `package` is its
    `__name__`; `available` maps each module to its names, separated by spaces."""
    homes = {name: f"{package}.{module}" for module, names in available.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)

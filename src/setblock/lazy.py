"""Import the names that a package offers on first use: PyTorch and Transformers take seconds, and `--help` needs
neither."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, available: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a `package`, its `__name__`, whose names live in its modules. `available`
    has the names by module, with spaces between them."""
    homes = {name: f"{package}.{module}" for module, names in available.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(homes)

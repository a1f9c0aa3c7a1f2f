"""A YAML loader for handwritten files, with the values that their authors mean."""

import re
from pathlib import Path
from typing import Any

import yaml

from setblock.errors import prefixed
from setblock.files import read_text
from setblock.json_lines import MOST_NESTED

_BOOL, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"


class YAMLLoader(yaml.SafeLoader):
    """PyYAML's loader of YAML 1.1, with two rules of YAML 1.2: `1e-4` is a number, and `no` is a word, as in
    `eval_strategy: no`. Nesting too deep for PyYAML's recursion is a `yaml.YAMLError`."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, and count the depth of nesting."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise yaml.YAMLError(f"it is nested deeper than {MOST_NESTED} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


YAMLLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YAMLLoader.add_implicit_resolver(_BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
YAMLLoader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))


def read_yaml(path: Path, *, what: str = "") -> Any:
    """Return the content of a file. Raise `SetBlockError`, naming `what` it is, if it can't be read or is not YAML."""
    with prefixed(f"{what} {path} is not YAML".strip(), yaml.YAMLError):
        return yaml.load(read_text(path, what=what), Loader=YAMLLoader)

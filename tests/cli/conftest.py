"""A tiny SBD checkpoint on disk, and a way to run a command on it."""

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging
from typer.testing import CliRunner

from families import SMALLEST_LLAMA, tiny_model, tiny_sbd
from setblock.cli.app import app
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """The one line that there must be on stderr."""
        (line,) = self.stderr.splitlines()
        return line


CONTEXT = 512
Run = Callable[..., Outcome]


def run_app(*args: object, stdin: str | bytes | None = None) -> Outcome:
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def run() -> Run:
    return run_app


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no line on stderr says so."""
    monkeypatch.setattr("setblock.cli.messages._PATIENCE", 3600.0)


@pytest.fixture(autouse=True)
def _talkative_again() -> Iterator[None]:
    verbosity = transformers_logging.get_verbosity()
    yield
    transformers_logging.set_verbosity(verbosity)
    transformers_logging.enable_progress_bar()


@pytest.fixture(scope="session")
def sbd_folder(tmp_path_factory: pytest.TempPathFactory, trained_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A checkpoint trained (by its own account) for blocks of up to 16. Read only: `copied` makes one to break."""
    folder = tmp_path_factory.mktemp("checkpoints") / "sbd"
    # The context has room for a word problem spelled in the tiny tokenizer's short tokens.
    tiny_sbd("llama", copy.deepcopy(trained_tokenizer), mode="shifted", max_position_embeddings=CONTEXT).save(folder)
    return folder


@pytest.fixture(scope="session")
def ntp_folder(tmp_path_factory: pytest.TempPathFactory, trained_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A checkpoint that was never SBD-trained."""
    folder = tmp_path_factory.mktemp("checkpoints") / "ntp"
    SBDModel(tiny_model("llama", vocab_size=len(trained_tokenizer)), trained_tokenizer).save(folder)
    return folder


@pytest.fixture
def copied(sbd_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sbd_folder, tmp_path / "copied"))


@pytest.fixture
def chat_folder(copied: Path) -> Path:
    """A model whose template writes every message."""
    (copied / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a: {% endif %}"
    )
    return copied


def _write_recipe(folder: Path) -> Path:
    content = {  # 12 documents, 2 batches of 2 a step: 3 steps an epoch
        "model": {
            "config": SMALLEST_LLAMA,
            "vocab_size": 300,
        },
        "data": {
            "source": "word-problems",
            "documents": 12,
            "evaluation": {"split": "validation", "documents": 2},
        },
        "training": {
            "output_dir": str(folder / "model"),
            "logit_shift": True,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-2,
            "use_cpu": True,
            "save_steps": 2,
            "save_total_limit": 2,
            "report_to": "none",
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of two epochs in float32; its output folder is `tmp_path / "model"`."""
    return _write_recipe(tmp_path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the recipe that nothing stopped. Read only."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = run_app("train", _write_recipe(folder))
    assert outcome.code == 0
    assert f"saved to {folder / 'model'} after 0 min " in outcome.stdout
    return folder / "model"


def assert_same_weights(ours: Path, theirs: Path) -> None:
    found, expected = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.equal(weights, found[name]), name

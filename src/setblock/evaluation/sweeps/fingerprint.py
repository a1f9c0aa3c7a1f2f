"""Fingerprints of a model, a task and the code, which change only when these change, and the provenance of a measurement."""

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import setblock
from setblock.data.tasks import Example, Task
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.protocol.sbd_config import CONFIG_KEY
from setblock.model.sbd_model import SBDModel
from setblock.model.weights import PrepackedLinear

_PACKAGE = Path(setblock.__file__).parent


def model_fingerprint(model: SBDModel | LanguageModel) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of weights, config, tokenizer and SBD config. Calibrations are left out: they
    change no answer whose settings are all given. For a model that another runtime reads from one file, hash the file."""
    if not isinstance(model, SBDModel):
        with Path(model.path).open("rb") as file:  # type: ignore[attr-defined]
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    config = model.model.config.to_dict()
    sbd_config = {key: value for key, value in (config.pop(CONFIG_KEY, None) or {}).items() if key != "calibrations"}
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    parts = [config, sbd_config, words, tokenizer.chat_template, model.quantization]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in _tensors(model.model):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in _plain_parts(tensor):
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def task_identity(task: Task[Any], examples: Sequence[Example], *, split: str, seed: int) -> dict[str, Any]:
    """Return a task's name, split, seed and number of examples, and 16 digits of the SHA-256 of their questions."""
    return {
        "name": task.name,
        "options": {"split": split, "seed": seed},
        "num_examples": len(examples),
        "questions": _digest(f"{example.question}\0{example.prompt}" for example in examples),
    }


@cache
def code_identity() -> dict[str, str | None]:
    """Return the package's version, its commit where it runs from a repository, and 16 digits of the SHA-256 of its
    sources."""
    files = sorted(_PACKAGE.rglob("*.py"))
    sources = _digest(f"{path.relative_to(_PACKAGE)}\0{path.read_text()}" for path in files)
    return {"version": version("setblock"), "commit": _commit(), "sources": sources}


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Return hardware, versions and date. `device`: the model's; by default PyTorch's current GPU, if there is one."""
    is_cpu = not torch.cuda.is_available() or (device is not None and device.type != "cuda")
    return {
        "hardware": {
            "cpu": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": None if is_cpu else torch.cuda.get_device_name(device),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the entries of `state_dict`, sorted by name. Prepacked weights are unpacked one at a time, not all together."""
    modules = {f"{name}." if name else "": module for name, module in model.named_modules(remove_duplicate=False)}
    stored = {
        f"{prefix}{name}": (prefix, module)
        for prefix, module in modules.items()
        for name in (
            *(name for name, each in module._parameters.items() if each is not None),
            *(name for name, each in module._buffers.items() if each is not None),
            *(["weight"] if isinstance(module, PrepackedLinear) else []),
        )
        if name not in module._non_persistent_buffers_set
    }
    for name, (prefix, module) in sorted(stored.items(), key=lambda each: each[0]):
        of_module: dict[str, Tensor] = {}
        module._save_to_state_dict(of_module, prefix, keep_vars=False)
        yield name, of_module[name]


def _plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a quantised one is made of; a plain one itself."""
    if type(tensor) is Tensor or not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain_parts(getattr(tensor, name))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{text}\0\0" for text in texts).encode()).hexdigest()[:16]


def _commit() -> str | None:
    """Return the commit, or None if the package is not under git (when it is installed) or git is missing."""
    # Another repository around the package does not have this file
    requested = ["git", "rev-parse", "HEAD", "HEAD:./__init__.py"]
    try:
        done = subprocess.run(requested, cwd=_PACKAGE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.split()[0]


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)", information.read_text(), re.MULTILINE) if information.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()

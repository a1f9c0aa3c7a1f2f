"""Write what this package adds to a checkpoint on disk: its SBD facts, and the lines by which Transformers' `generate` finds
the package.

No list of requirements goes with those. Transformers would refuse by that list even to load the model, which needs none of
this.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

from setblock.errors import SetBlockError
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.protocol.facts import CONFIG_KEY, SBDFacts


def write_facts(folder: Path, facts: SBDFacts) -> None:
    """Replace the facts in a checkpoint's `config.json`. Every other entry stays; the file changes at once or not at all.

    Raises:
        SetBlockError: the folder is the bundled model's, is no checkpoint, or can't be written.
    """
    if folder.resolve() == BUNDLED_MODEL.resolve():
        raise SetBlockError("the bundled model is read-only: write to a copy, with --output FOLDER")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config[CONFIG_KEY] = facts.to_json()
        temporary = path.with_name(".config.json.writing")
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        raise SetBlockError(f"can't write {path}: {error}") from error


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a checkpoint into a new folder, which appears once it is whole.

    Raises:
        SetBlockError: the folder exists and is not empty, or can't be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SetBlockError(f"{folder} exists already: --output must be a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            whole = Path(shutil.copytree(source, Path(temporary) / folder.name))
            for path in (whole, *whole.rglob("*")):
                path.chmod(path.stat().st_mode | 0o200)  # the copy's owner may write to it
            os.replace(whole, folder)
    except OSError as error:
        raise SetBlockError(f"can't write {folder}: {error}") from error


def write_custom_generate(checkpoint: Path) -> None:
    """Write `custom_generate/generate.py` into a checkpoint, as the bundled model has it."""
    path = Path("custom_generate", "generate.py")
    (checkpoint / path).parent.mkdir()
    shutil.copyfile(BUNDLED_MODEL / path, checkpoint / path)

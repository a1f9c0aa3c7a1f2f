"""Checks of a model's name or path (folder, GGUF file, short name or hub id) before anything of the model is loaded.

Nothing heavy is imported, so that a mistyped name is reported at once.
"""

import logging
import re
from functools import cache
from pathlib import Path

from setblock.errors import SetBlockError, did_you_mean
from setblock.files import is_gguf
from setblock.model.loading.named import BUNDLED, NAMED_MODELS, is_delta, is_named

_MAGIC = b"GGUF"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_HUB_SECONDS = 10


def check_gguf(source: str | Path) -> None:
    """Raise `SetBlockError` if a GGUF file does not exist, can't be read, or is not GGUF."""
    path = Path(source)
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise SetBlockError(f"model {source}: can't read the file: {error.strerror}{near(source)}") from error
    if magic != _MAGIC:
        raise SetBlockError(f"model {source} is not a GGUF file: it does not begin with {_MAGIC.decode()!r}")


def check_source(source: str, *, needs_weights: bool = True) -> None:
    """Raise `SetBlockError`, with the nearest name or path, if there is no model at `source`. A folder must have weights only
    if `needs_weights`. The hub is asked once."""
    if not source.strip():
        raise SetBlockError(f"model must be a folder, a hub id, a GGUF file or a name, not {source!r}")
    folder = Path(source)
    if is_gguf(source):
        check_gguf(source)
    elif folder.is_dir():
        if is_delta(source):
            return  # `named` reports what is wrong with it
        if not (folder / "config.json").is_file():
            raise SetBlockError(f"model {source} is not a checkpoint: the folder has no config.json")
        if needs_weights and not any(folder.glob("*.safetensors")):
            more = " (weights pickled in .bin files are not read)"
            if found := sorted(folder.glob("*.gguf")):
                more = f": to load its GGUF file, name that, {found[0]}"
            raise SetBlockError(f"model {source} has no safetensors file{more}")
    elif folder.exists():
        raise SetBlockError(f"model {source} is a file, not a checkpoint folder")
    elif not _HUB_ID.fullmatch(source):
        raise SetBlockError(f"model {source}: no such folder{near(source)}")
    elif source != BUNDLED and not is_named(source):
        _check_on_hub(source)


def near(source: str | Path) -> str:
    """Return the existing path that was probably meant by a missing one, as part of a message."""
    path = Path(source)
    kind = Path.is_file if is_gguf(path) else Path.is_dir
    others = [str(each) for each in path.parent.iterdir() if kind(each)] if path.parent.is_dir() else []
    return did_you_mean(str(path), others)


@cache
def _check_on_hub(source: str) -> None:
    """Ask the hub once for a model that is not local: Transformers would retry for half a minute."""
    nowhere = "there is no such folder"
    if "/" not in source:
        names = (BUNDLED, *NAMED_MODELS)
        nowhere += f" or name ({', '.join(names)})"
        if meant := did_you_mean(source, names, cutoff=0.8):
            raise SetBlockError(f"model {source}: {nowhere}{meant}")
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(source, "config.json"), str):
        return
    logging.getLogger("setblock.steps").info("asking the hub for %s", source)
    try:
        HfApi().model_info(source, timeout=_HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise SetBlockError(f"model {source}: {nowhere}, and the hub has no such model{near(source)}") from error
    except HfHubHTTPError:
        return  # Transformers reports this in more detail
    except Exception as error:  # without a connection, the hub's client raises errors of several libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SetBlockError(
            f"model {source}: {nowhere}, and the hub can't be reached (no internet connection?): {reason}{near(source)}"
        ) from error

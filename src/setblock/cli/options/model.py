"""Turn the model options into a loaded model."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from setblock.cli.messages import print_message, print_warning, silence_libraries, slow_steps_named
from setblock.cli.options.groups import option, option_group
from setblock.errors import SetBlockError, SetBlockWarning
from setblock.model.loading.source import check_source

if TYPE_CHECKING:
    from setblock.model.protocol.language_model import LanguageModel
    from setblock.model.sbd_model import SBDModel

Model = TypeVar("Model", bound="LanguageModel")

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8"]  # as in `setblock.model.weights`, which takes seconds to import


@option_group("Model")
class ModelOptions:
    """Hold which model, and how it is loaded."""

    path: str | None = option(
        None,
        "Folder, hub id or name (`setblock fetch`) of a causal LM, or a GGUF file. Default: `bundled`, the included model.",
        "--model",
    )
    adapter: Path | None = option(
        None,
        "Folder with a UNO adapter of the model (plain LoRA). It drafts for method exact; the text stays the model's.",
        metavar="FOLDER",
        is_rare=True,
    )
    dtype: Dtype = option("auto", "Type of the weights. auto: as in the checkpoint.", is_rare=True)
    device: str | None = option(
        None,
        "Where to run the model: cpu, cuda, cuda:1, mps. Default: a CUDA GPU if there is one, else the CPU.",
        is_rare=True,
    )
    trust_remote_code: bool = option(False, "Allow code that comes with the checkpoint to run.", is_rare=True)
    quantization: Quantization | None = option(
        None,
        "int8: store the weights of linear layers in eight bits (needs `pip install 'setblock\\[quantize]'`).",
        is_rare=True,
    )
    compile: bool = option(
        False,
        "Compile the model with torch.compile. The first use takes minutes, so use it for hundreds of answers.",
        is_rare=True,
    )
    prepack: bool | None = option(
        None,
        "On a CPU: convert the weights to the layout of its matrix kernels once, at the start. Excludes "
        "--quantization. Default: generate, compare, evaluate and serve do so for weights in half precision.",
        "--prepack/--no-prepack",
        is_rare=True,
    )

    @property
    def source(self) -> str | Path:
        """Return the folder, hub id or name of the model."""
        from setblock.model.loading.named import BUNDLED_MODEL

        return BUNDLED_MODEL if self.path is None else self.path

    def check(self) -> None:
        """Check that there is such a model, before anything heavy is imported.

        Raises:
            SetBlockError: there is none.
        """
        with slow_steps_named():
            check_source(str(self.source))


def warn_of_bundled(options: ModelOptions) -> str | None:
    """Warn, in one line, if the included model is about to answer what somebody typed, and say what brings a chat model.

    Returns:
        The line; None for other models.
    """
    from setblock.model.loading.named import BUNDLED, BUNDLED_MODEL, is_fetched

    if options.source not in (BUNDLED_MODEL, BUNDLED):
        return None
    there = is_fetched(_CHAT_MODEL)
    how = "this machine has one" if there else f"`setblock fetch {_CHAT_MODEL}` downloads one (93 MB)"
    told = f"the included model knows word problems only. For a chat model, give --model {_CHAT_MODEL}: {how}"
    print_warning(told)
    return told


_CHAT_MODEL = "smollm2"


def load_model(options: ModelOptions, *, blocks: bool, fastest: bool = False) -> "SBDModel":
    """Load the model that the options name, or the bundled one.

    Args:
        blocks: whether it is to be decoded in blocks that nothing checks, which it must have been trained for.
        fastest: whether its weights may be prepacked without having been asked for, where that pays.

    Raises:
        SetBlockError: it can't be loaded, or has no mask token and `blocks` needs one.
    """
    with slow_steps_named():
        logging.getLogger("setblock.steps").info("starting PyTorch and Transformers")
        return _loaded(options, blocks=blocks, fastest=fastest)


def _loaded(options: ModelOptions, *, blocks: bool, fastest: bool) -> "SBDModel":
    import torch

    from setblock.model.loading.loading import load
    from setblock.model.weights import prepacking_pays

    silence_libraries()
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = checked_for_blocks(
        lambda: load(
            options.source,
            dtype=dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
            quantization=options.quantization,
            adapter=options.adapter,
        ),
        str(options.source),
        blocks=blocks,
    )
    if options.prepack:
        model.prepack()
    elif options.prepack is None and fastest and options.quantization is None and prepacking_pays(model.model):
        try:
            model.prepack()
        except SetBlockError as error:
            warnings.warn(f"weights stay as they are: {error}", SetBlockWarning, stacklevel=2)
    if options.compile:
        layers = model.model.config.get_text_config().num_hidden_layers
        print_message(
            f"compiling: each size of pass takes about {layers * _SECONDS_A_LAYER} s at its first use; Inductor keeps the code"
        )
        model.compile()
    return model


_SECONDS_A_LAYER = 1
"""Inductor compiles one size of pass of SmolLM2-135M (30 layers) in about 25 s of one Zen 4 core. A pass then takes 0.7 times
as long. So compilation is left to users: it pays after about two thousand passes of each size."""


def checked_for_blocks(load: Callable[[], Model], name: str, *, blocks: bool) -> Model:
    """Return what `load` gives, for what it is to do; its warnings are shown unless they are of no use for that.

    Raises:
        SetBlockError: the model has no mask token and `blocks` needs one.
    """
    from setblock.model.loading.loading import NotTrainedForBlocks

    with warnings.catch_warnings(record=True) as caught:
        model = load()
    if blocks and model.facts is None:  # one line, not the warning and then the error
        raise SetBlockError(
            f"model {name} has no mask token: use method exact or ntp, or fine-tune it with `setblock train`"
        )
    for warning in caught:
        if blocks or not issubclass(warning.category, NotTrainedForBlocks):
            warnings.warn(warning.message, stacklevel=2)
    return model

"""The options of a model and of its runtime, and the loading of the model into PyTorch or llama.cpp."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from setblock.cli.messages import print_message, print_warning, silence_libraries, slow_steps_named
from setblock.cli.options.decoding_options import key_values
from setblock.cli.options.groups import option, option_group, optional, rare
from setblock.errors import ParameterError, SetBlockError, converted, did_you_mean, warn
from setblock.files import is_gguf
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.model.loading.named import BUNDLED, BUNDLED_MODEL, is_fetched
from setblock.model.loading.source import check_source

if TYPE_CHECKING:
    from setblock.model.protocol.runtime import LanguageModel
    from setblock.model.sbd_model import SBDModel

Model = TypeVar("Model", bound="LanguageModel")

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8"]  # as in `setblock.model.weights`, which takes seconds to import


@option_group("Model")
class ModelOptions:
    """The options that select a model, and how it is loaded."""

    path: str | None = optional(
        "Folder, hub id or name (`setblock fetch`) of a causal LM, or a GGUF file. Default: `bundled`, the included model.",
        "--model",
    )
    adapter: Path | None = rare(
        "Folder with an adapter that drafts for method exact: RUN/sbd_adapter, one of `setblock export`, or UNO's. The text "
        "stays the model's.",
        metavar="FOLDER",
    )
    dtype: Dtype = option("auto", "Type of the weights. auto: as in the checkpoint.", is_rare=True)
    device: str | None = rare(
        "Where to run the model: cpu, cuda, or cuda:1 and so on. Default: a CUDA GPU if there is one, else the CPU."
    )
    trust_remote_code: bool = option(False, "Allow code that comes with the checkpoint to run.", is_rare=True)
    quantization: Quantization | None = rare(
        "int8: store the weights of linear layers in eight bits (needs the extra `quantize`)."
    )
    compile: bool = option(
        False,
        "Compile the model with torch.compile, for passes of few sizes. The first use takes minutes, so use it for hundreds of "
        "answers.",
        is_rare=True,
    )
    cuda_graphs: bool = option(
        False,
        "On a CUDA GPU: capture passes of few sizes as CUDA graphs, and launch each with one call. Off by default: it was "
        "tried on a CPU only, with a recorder in place of the graphs.",
        is_rare=True,
    )
    prepack: bool | None = rare(
        "On a CPU: convert the weights to the layout of its matrix kernels once, at the start. Excludes "
        "--quantization. Default: generate, compare, evaluate and serve do so for weights in half precision.",
        "--prepack/--no-prepack",
    )

    @property
    def source(self) -> str | Path:
        """Return the folder, hub id or name of the model."""
        return BUNDLED_MODEL if self.path is None else self.path

    def check(self) -> None:
        """Raise `SetBlockError` if there is no such model, before anything heavy is imported."""
        with slow_steps_named():
            check_source(str(self.source))


def warn_of_bundled(options: ModelOptions) -> str | None:
    """Warn, in one line, if the included model is about to answer what somebody typed, and say what brings a chat model.
    Return the line; None for other models."""
    if options.source not in (BUNDLED_MODEL, BUNDLED):
        return None
    there = is_fetched(_CHAT_MODEL)
    how = "this machine has one" if there else f"`setblock fetch {_CHAT_MODEL}` downloads one (93 MB)"
    message = (
        "the included model knows the word problems of one generator only: with other names, about half of its answers are "
        f"wrong. For a chat model, give --model {_CHAT_MODEL}: {how}"
    )
    print_warning(message)
    return message


_CHAT_MODEL = "smollm2"


@slow_steps_named()
def load_model(options: ModelOptions, *, blocks: bool, fastest: bool = False) -> "SBDModel":
    """Load the model that the options name, or the bundled one. `blocks`: whether it will decode unverified blocks, for which
    it must have been trained. `fastest`: whether its weights may be prepacked without an option, where that pays. Raise
    `SetBlockError` if it can't be loaded, or has no mask token and `blocks` needs one."""
    logging.getLogger("setblock.steps").info("starting PyTorch and Transformers")
    import torch

    from setblock.model.loading.loading import load
    from setblock.model.weights import prepacking_pays

    silence_libraries()
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    how = {name: getattr(options, name) for name in ("device", "trust_remote_code", "quantization", "adapter")}
    model = checked_for_blocks(lambda: load(options.source, dtype=dtype, **how), str(options.source), blocks=blocks)
    if options.prepack:
        model.prepack()
    elif options.prepack is None and fastest and options.quantization is None and prepacking_pays(model.model):
        try:
            model.prepack()
        except SetBlockError as error:
            warn(f"weights stay as they are: {error}")
    if options.compile:
        # SmolLM2-135M (30 layers) takes about 25 s of one Zen 4 core for each size of pass, and a pass then 0.7 times as long.
        # So compilation is left to users: it pays after about two thousand passes of each size.
        seconds = model.model.config.get_text_config().num_hidden_layers
        print_message(f"compiling: each size of pass takes about {seconds} s at its first use; Inductor keeps the code")
        model.compile()
    if options.cuda_graphs:
        model.capture()
    return model


def checked_for_blocks(load: Callable[[], Model], name: str, *, blocks: bool) -> Model:
    """Return what `load` gives, for what it is to do; its warnings are shown unless they are of no use for that. Raise
    `SetBlockError` if the model has no mask token and `blocks` needs one."""
    from setblock.model.loading.loading import NotTrainedForBlocks

    with warnings.catch_warnings(record=True) as caught:
        model = load()
    if blocks and model.sbd_config is None:  # one line, not the warning and then the error
        raise SetBlockError(
            f"model {name} has no mask token: use method exact or ntp, or fine-tune it with `setblock train`"
        )
    for warning in caught:
        if blocks or not issubclass(warning.category, NotTrainedForBlocks):
            warnings.warn(warning.message, stacklevel=2)
    return model


OF_LLAMA = {each.name: each.type for each in fields(LlamaOptions)}


@option_group("Model")
class RuntimeOptions(ModelOptions):
    """The options that select a model and its runtime."""

    runtime: Literal["transformers", "llama-cpp"] | None = rare(
        "What runs the model. transformers: PyTorch. llama-cpp: llama.cpp (needs the extra `llama-cpp`), the "
        "default for GGUF files if it is installed."
    )
    runtime_options: list[str] | None = rare(
        f"An option of llama.cpp, such as n_ctx=4096: {', '.join(OF_LLAMA)}. Can be repeated.",
        "--runtime-option",
        metavar="KEY=VALUE",
    )
    draft_text: Path | None = rare(
        "JSON Lines file of answers that the model gave before, or of answers like them: method exact copies drafts from "
        "them, too. The text of an answer does not depend on it. Default: the model's own file, if it has one."
    )

    @property
    def takes_llama_cpp(self) -> bool:
        """Return whether llama.cpp runs the model. Raise `SetBlockError` if it should and can't, or an option is for the other
        runtime."""
        from setblock.integrations.llama_cpp.library import is_installed

        has_file = self.path is not None and is_gguf(self.path)
        changed = [each.name for each in fields(ModelOptions) if getattr(self, each.name) != each.default]
        for_torch = [name for name in changed if name != "path"]
        for_llama, runtime = ["runtime-option"] if self.runtime_options else [], self.runtime
        if runtime is None:
            runtime = "llama-cpp" if has_file and not for_torch and (for_llama or is_installed()) else "transformers"
        others, needed = (for_llama, "llama-cpp") if runtime == "transformers" else (for_torch, "transformers")
        if others:
            raise SetBlockError(f"--{others[0].replace('_', '-')} needs --runtime {needed}")
        if runtime == "llama-cpp" and not has_file:
            raise SetBlockError(
                f"runtime llama-cpp needs a GGUF file, not {self.path or 'the bundled model'}: write one with `setblock export`"
            )
        return runtime == "llama-cpp"

    def llama_options(self) -> LlamaOptions:
        """Return the options of llama.cpp, or raise `ParameterError` if one is not known, or its value not valid."""
        given = key_values("--runtime-option", self.runtime_options)
        for name in given.keys() - OF_LLAMA.keys():
            raise ParameterError(
                f"--runtime-option {name} is not known{did_you_mean(name, OF_LLAMA)}; there are {', '.join(OF_LLAMA)}"
            )
        values = {name: converted(f"--runtime-option {name}", text, OF_LLAMA[name]) for name, text in given.items()}
        return LlamaOptions(**values)


def load_language_model(options: RuntimeOptions, *, blocks: bool) -> "LanguageModel":
    """Load the model that the options name into the runtime that they name. `blocks` and errors are those of `load_model`."""
    from setblock.model.protocol.draft_text import draft_text_of, read_texts

    texts = None if options.draft_text is None else list(read_texts(options.draft_text))
    model: LanguageModel
    if not options.takes_llama_cpp:
        model = load_model(options, blocks=blocks, fastest=True)
    else:
        silence_libraries()
        from setblock.integrations.llama_cpp.model import load

        path, how = str(options.path), options.llama_options()
        model = checked_for_blocks(lambda: load(path, how), path, blocks=blocks)
    if texts is not None:
        model.draft_text = draft_text_of(texts, model)
    return model

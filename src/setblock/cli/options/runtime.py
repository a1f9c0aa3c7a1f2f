"""Turn the options of a runtime into a model that PyTorch or llama.cpp runs."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from setblock.cli.messages import silence_libraries
from setblock.cli.options.decoding_options import once, pair
from setblock.cli.options.groups import option, option_group
from setblock.cli.options.model import ModelOptions, checked_for_blocks, load_model
from setblock.errors import ParameterError, SetBlockError, did_you_mean
from setblock.integrations.llama_cpp.options import LlamaOptions

if TYPE_CHECKING:
    from setblock.model.protocol.language_model import LanguageModel

RuntimeName = Literal["transformers", "llama-cpp"]
_OF_TRANSFORMERS = ("adapter", "dtype", "device", "trust_remote_code", "quantization", "compile", "prepack")
OF_LLAMA = {each.name: each.type for each in fields(LlamaOptions) if each.name != "use_extra_bufts"}


@option_group("Model")
class RuntimeOptions(ModelOptions):
    """Hold which model, and who runs it."""

    runtime: RuntimeName | None = option(
        None,
        "What runs the model. transformers: PyTorch. llama-cpp: llama.cpp (pip install 'setblock\\[llama-cpp]'), the "
        "default for GGUF files if it is installed.",
        is_rare=True,
    )
    runtime_options: list[str] | None = option(
        None,
        f"An option of llama.cpp, such as n_ctx=4096: {', '.join(OF_LLAMA)}. Can be repeated.",
        "--runtime-option",
        metavar="KEY=VALUE",
        is_rare=True,
    )
    draft_text: Path | None = option(
        None,
        "JSON Lines file of answers that the model gave before, or of answers like them: method exact copies drafts from "
        "them, too. The text of an answer does not depend on it. Default: the model's own file, if it has one.",
        metavar="FILE",
        is_rare=True,
    )

    @property
    def takes_llama_cpp(self) -> bool:
        """Return whether llama.cpp is to run the model.

        Raises:
            SetBlockError: it is, and can't; or an option goes with the other runtime.
        """
        from setblock.integrations.llama_cpp.library import is_installed
        from setblock.model.loading.source import is_gguf

        has_file = self.path is not None and is_gguf(self.path)
        default = {field.name: field.default for field in fields(self)}
        for_torch = [name for name in _OF_TRANSFORMERS if getattr(self, name) != default[name]]
        for_llama, runtime = ["runtime-option"] if self.runtime_options else [], self.runtime
        if runtime is None:
            runtime = "llama-cpp" if has_file and not for_torch and (for_llama or is_installed()) else "transformers"
        if runtime == "transformers":
            _refuse(for_llama, "llama-cpp")
            return False
        _refuse(for_torch, "transformers")
        if not has_file:
            raise SetBlockError(
                f"runtime llama-cpp needs a GGUF file, not {self.path or 'the bundled model'}: write one with `setblock export`"
            )
        return True

    def llama_options(self) -> LlamaOptions:
        """Return the options of llama.cpp.

        Raises:
            ParameterError: one is not known, or its value not valid.
        """
        given = once([pair("--runtime-option", text) for text in self.runtime_options or ()])
        for name in given.keys() - OF_LLAMA.keys():
            raise ParameterError(
                f"--runtime-option {name} is not known{did_you_mean(name, OF_LLAMA)}; there are {', '.join(OF_LLAMA)}"
            )
        return LlamaOptions(**{name: _value(name, text) for name, text in given.items()})


def _value(name: str, text: str) -> Any:
    if OF_LLAMA[name] not in (int, int | None):
        return text
    try:
        return int(text)
    except ValueError as error:
        raise ParameterError(f"--runtime-option {name} must be a whole number, not {text!r}") from error


def _refuse(names: list[str], runtime: RuntimeName) -> None:
    if names:
        raise SetBlockError(f"--{names[0].replace('_', '-')} needs --runtime {runtime}")


def load_language_model(options: RuntimeOptions, *, blocks: bool) -> "LanguageModel":
    """Load the model that the options name into the runtime that they name.

    Args:
        blocks: as in `load_model`, which raises what this does.
    """
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

"""A GGUF file in llama.cpp as a `LanguageModel` that decoding can run (`setblock.model.protocol.runtime`)."""

from pathlib import Path
from typing import ClassVar

import torch

from setblock.errors import SetBlockError, warn
from setblock.integrations.llama_cpp.library import ModelFile, library
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.integrations.llama_cpp.runner import PROBED_SEQUENCES, Context, LlamaRunner, own_sequence
from setblock.model.loading.gguf import end_of_text_in, sbd_config_in, tokenizer_in
from setblock.model.loading.loading import warn_if_untrained
from setblock.model.loading.source import check_gguf
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.runtime import Runner, StaticRunner


class LlamaModel:
    """A `LanguageModel` in llama.cpp; `setblock.model.protocol.runtime` describes its attributes."""

    draft_text: DraftText | None = None
    device: ClassVar[torch.device] = torch.device("cpu")  # where llama.cpp returns its logits, also from a GPU
    needs_whole_rows: ClassVar[bool] = False
    static_kind: ClassVar[None] = None  # llama.cpp launches its passes itself
    static_state: ClassVar[None] = None

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        """Load a file. Raise as `load` does."""
        library()
        check_gguf(path)
        self.path, self.options, self.file = path, options, ModelFile(path, options)
        metadata, self.vocab_size = self.file.metadata, self.file.vocab_size
        self.sbd_config = sbd_config_in(metadata, path, vocab_size=self.vocab_size)
        self.tokenizer = tokenizer_in(metadata, path)
        ours = self.tokenizer(_SAMPLE, add_special_tokens=False, split_special_tokens=True).input_ids
        if list(ours) != self.file.tokens_of(_SAMPLE):
            warn(
                f"{path}: setblock and llama.cpp split a text into different tokens; answers may differ from llama.cpp's own"
            )
        self.end_of_text_ids = end_of_text_in(metadata, path) or self.file.end_of_text_ids()
        self.context_length = min(self.file.context_length, options.n_ctx or self.file.context_length)
        empty = Context(self.file, options, cells=1, sequences=PROBED_SEQUENCES)
        self._own = own_sequence(empty, vocab_size=self.vocab_size)

    def runner(self, *, pages: int, page_tokens: int, rows: int, whole_rows: bool = False) -> LlamaRunner:
        """See `setblock.model.protocol.runtime.LanguageModel`."""
        return LlamaRunner(Context(self.file, self.options, cells=pages * page_tokens), own=self._own, rows=rows)

    def static_passes(self, runner: Runner, *, rows: int, positions: int) -> StaticRunner:
        """Raise `SetBlockError`: llama.cpp launches its passes itself."""
        raise SetBlockError("llama.cpp has no passes of fixed sizes")


_SAMPLE = (
    "Hello world, it's 2024!\n\n\tdef f(x): return x**2  # naïve café, 中文 🙂 ...   don't \"quote\" <tag/> 3.14159"
)


def load(path: str | Path, options: LlamaOptions | None = None) -> LlamaModel:
    """Load a GGUF file into llama.cpp, and warn if it was not trained for blocks. Raise `SetBlockError` if llama.cpp is not
    installed, or the file is missing, damaged, of a family that llama.cpp does not know, or can't be decoded in blocks."""
    model = LlamaModel(Path(path), options or LlamaOptions())
    warn_if_untrained(str(model.path), model.sbd_config)
    return model

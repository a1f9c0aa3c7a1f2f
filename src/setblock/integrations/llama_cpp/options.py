"""The options of a model in llama.cpp, by llama.cpp's names. Nothing heavy is imported: the command line reads them."""

from dataclasses import dataclass
from typing import Literal, get_args

from setblock.errors import ParameterError, check_at_least, check_one_of

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""The types of cached keys and values, by GGML's names."""

FlashAttention = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class LlamaOptions:
    """The options of a model in llama.cpp.

    Attributes:
        n_gpu_layers: Number of layers on the GPU; -1 for all. llama.cpp has a GPU only if it was built for one.
        n_threads: Number of threads of a pass. Default: PyTorch's number.
        n_ctx: Maximum number of tokens of a prompt and its answer together. Default: the context length of the file.
        n_ubatch: Maximum number of tokens in one computation. A block and what is committed with it must fit.
        type_k: Type of the cached keys.
        type_v: Type of the cached values.
        flash_attn: Flash attention. auto: on if a GPU computes or values are quantised, and off on a CPU. There it rounds to
            16 bits, and so the logits of a token depend on how many are computed with it.
    """

    n_gpu_layers: int = -1
    n_threads: int | None = None
    n_ctx: int | None = None
    n_ubatch: int = 512
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"

    def __post_init__(self) -> None:
        check_at_least(1, n_threads=self.n_threads, n_ctx=self.n_ctx)
        check_at_least(64, n_ubatch=self.n_ubatch)  # llama.cpp wants at least one token for each sequence
        for name, known in (("type_k", CacheType), ("type_v", CacheType), ("flash_attn", FlashAttention)):
            check_one_of(name, getattr(self, name), get_args(known))
        if self.flash_attn == "off" and self.has_quantised_values:
            raise ParameterError(f"type_v {self.type_v} needs flash_attn on or auto, not off")

    @property
    def has_quantised_values(self) -> bool:
        """Whether cached values are quantised, which llama.cpp can read by flash attention only."""
        return self.type_v.startswith("q")

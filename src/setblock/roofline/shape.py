"""The shape of a decoder, read from the config of a Hugging Face causal LM: grouped queries, gates, experts, windows, heads.

It needs no weights, and neither PyTorch nor Transformers. Only matrices are counted: norms and biases are thousandths of a
model.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from setblock.errors import SetBlockError

# Families with feed-forward layers of two matrices; all others are assumed gated, with three. Configs don't record this.
_NOT_GATED = frozenset(
    "arcee codegen falcon gpt2 gpt_bigcode gpt_neo gpt_neox gptj nemotron opt persimmon phi starcoder2".split()
)
_LEARNED_POSITIONS = frozenset(["gpt2", "gpt_bigcode", "gpt_neo"])


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The shape of a group of equal layers."""

    count: int  # how many of them the model has
    window: int | None  # positions that a query sees, itself included; None for all
    width: int  # of the feed-forward layer, or of one expert
    experts: int = 0  # 0 in a dense layer
    active_experts: int = 0  # experts of each token
    shared_width: int = 0  # width of the experts that every token uses in addition to its own


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a decoder-only model."""

    name: str
    hidden: int  # width between layers
    heads: int  # of attention, as are the next two
    kv_heads: int
    head_dim: int
    gated: bool  # whether feed-forward layers have a gate, a third matrix
    vocabulary: int  # rows of the embedding, and outputs of the LM head
    tied: bool  # whether embedding and LM head are one matrix
    layers: tuple[LayerShape, ...]  # in groups of equal layers
    positions: int = 0  # learned ones; 0 for rotary

    @property
    def parameters(self) -> int:
        """The number of parameters in all matrices."""
        embeddings = (self.vocabulary * (1 if self.tied else 2) + self.positions) * self.hidden
        return self._layer_parameters(active_only=False) + embeddings

    @property
    def active_parameters(self) -> int:
        """The number of parameters that one token is multiplied by: with its experts and the LM head, without embedding."""
        return self._layer_parameters(active_only=True) + self.vocabulary * self.hidden

    def _layer_parameters(self, *, active_only: bool) -> int:
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        one_wide = self.hidden * (3 if self.gated else 2)  # of a feed-forward layer, for each unit of width
        total = 0
        for layer in self.layers:
            copies = layer.active_experts if active_only else layer.experts
            width = layer.width * copies + layer.shared_width if layer.experts else layer.width
            total += layer.count * (attention + one_wide * width + self.hidden * layer.experts)
        return total


def shape_of(config: Any, *, name: str | None = None) -> ModelShape:
    """Return the shape that a config describes: a `PretrainedConfig`, or the mapping in a `config.json`. `name` is the name of
    the model, by default its `model_type`. Raise `SetBlockError` if a size is missing, or if the architecture has parts that
    are not modelled."""
    config = SimpleNamespace(**config) if isinstance(config, Mapping) else config.get_text_config()
    kind = str(_read(config, "model_type", default="unknown"))
    if _read(config, "kv_lora_rank"):
        raise _not_modelled(kind, "multi-head latent attention")
    if _read(config, "is_heterogeneous", "per_layer_config"):
        raise _not_modelled(kind, "layers of different sizes")
    hidden = _size(config, "hidden_size", "n_embd")
    heads = _size(config, "num_attention_heads", "n_head")
    return ModelShape(
        name=name or kind,
        hidden=hidden,
        heads=heads,
        kv_heads=_read(config, "num_key_value_heads", default=heads),
        head_dim=_read(config, "head_dim", default=hidden // heads),
        gated=kind not in _NOT_GATED,
        vocabulary=_size(config, "vocab_size"),
        tied=bool(_read(config, "tie_word_embeddings", default=True)),
        positions=_size(config, "max_position_embeddings", "n_positions") if kind in _LEARNED_POSITIONS else 0,
        layers=_layers(config, kind, hidden),
    )


def _layers(config: Any, kind: str, hidden: int) -> tuple[LayerShape, ...]:
    number = _size(config, "num_hidden_layers", "n_layer")
    width = _read(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    expert_width = _read(config, "moe_intermediate_size", default=width)
    shared = _read(config, "n_shared_experts", "num_shared_experts", default=0) * expert_width
    experts = {
        "width": expert_width,
        "experts": _read(config, *_EXPERTS, default=0),
        "active_experts": _read(config, "num_experts_per_tok", "num_experts_per_token", default=0),
        "shared_width": _read(config, "shared_expert_intermediate_size", default=shared),
    }
    counts = Counter(zip(_windows(config, kind, number), _sparse(config, number), strict=True))
    return tuple(
        LayerShape(count=count, window=window, **(experts if is_sparse else {"width": width}))
        for (window, is_sparse), count in counts.items()
    )


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def _windows(config: Any, kind: str, number: int) -> list[int | None]:
    is_used = _read(config, "use_sliding_window", default=True)
    window = (_read(config, "sliding_window") or None) if is_used else None
    kinds = _read(config, "layer_types") or ["sliding_attention"] * number
    for each in kinds:
        if each not in ("full_attention", "sliding_attention"):
            raise _not_modelled(kind, f"layers of type {each!r}")
    return [window if each == "sliding_attention" else None for each in kinds]


def _sparse(config: Any, number: int) -> list[bool]:
    if not _read(config, *_EXPERTS, default=0):
        return [False] * number
    if kinds := _read(config, "mlp_layer_types"):
        return [each == "sparse" for each in kinds]
    dense = {*_read(config, "mlp_only_layers", default=[]), *range(_read(config, "first_k_dense_replace", default=0))}
    step = _read(config, "decoder_sparse_step", default=1)
    return [index not in dense and (index + 1) % step == 0 for index in range(number)]


def _not_modelled(kind: str, what: str) -> SetBlockError:
    return SetBlockError(f"{kind} has {what}, which the roofline does not model: see docs/roofline.md")


def _size(config: Any, *names: str) -> int:
    value = _read(config, *names)
    if not isinstance(value, int) or value < 1:
        raise SetBlockError(f"the config has no valid {names[0]}: {value!r}")
    return value


def _read(config: Any, *names: str, default: Any = None) -> Any:
    """Return the config's value for the first of these names that has one."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), default)


def _config(*sizes: str | int, **more: Any) -> dict[str, Any]:
    names = "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
    return {**dict(zip(names.split(), sizes, strict=True)), **more}


_MIXTURE = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}

# Sizes from public `config.json` files, so that no download is needed; the paper fine-tunes the first two
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _config("llama", 4096, 14336, 32, 32, 8, vocab_size=128256, tie_word_embeddings=False),
    "qwen3-8b": _config("qwen3", 4096, 12288, 36, 32, 8, head_dim=128, vocab_size=151936, tie_word_embeddings=False),
    "qwen3-30b-a3b": _config(
        "qwen3_moe", 2048, 6144, 48, 32, 4, **_MIXTURE, vocab_size=151936, tie_word_embeddings=False
    ),
    "smollm2-135m": _config("llama", 576, 1536, 30, 9, 3, vocab_size=49152, tie_word_embeddings=True),
}

PAPER_MODEL = "llama-3.1-8b"
PRESETS: dict[str, ModelShape] = {name: shape_of(config, name=name) for name, config in CONFIGS.items()}

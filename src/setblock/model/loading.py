"""`load`: a folder or hub id -> a model that can be decoded in blocks, or a reason why it can't be."""

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from setblock.errors import SetBlockError
from setblock.model.attention import layer_windows
from setblock.model.bundled import BUNDLED_MODEL
from setblock.model.facts import read_facts
from setblock.model.sbd_model import SBDModel


class NotTrainedForBlocks(UserWarning):
    """The model was never SBD-trained."""


def load(
    path: str | Path = BUNDLED_MODEL,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> SBDModel:
    """Load a causal LM from a local folder or a hub id.

    A model that was never SBD-trained loads with a warning; it decodes one token a pass, and can be trained.

    Args:
        path: a folder, or a hub id; the bundled reference model by default.
        dtype: type of the weights; the checkpoint's own by default.
        device: where to put it; by default a GPU if there is one.
        attn_implementation: `sdpa`, `flex_attention` or `eager`; by default the fastest that the model allows.
        trust_remote_code: run code that comes with the checkpoint. Off unless asked for.

    Raises:
        SetBlockError: there is no such model, a file of it is broken, or its architecture can't be decoded in blocks.
    """
    source = str(path)
    if Path(source).exists() and not Path(source).is_dir():
        raise SetBlockError(f"model {source} is a file, not a checkpoint folder")
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        refuse_unsupported(config)
        facts = read_facts(config)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype or "auto",
            attn_implementation=attn_implementation or _attention_for(config),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
        )
    except SafetensorError as error:
        raise SetBlockError(f"model {source}: its safetensors file is corrupt or truncated ({_line(error)})") from error
    except SetBlockError as error:
        raise SetBlockError(f"model {source}: {error}") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise SetBlockError(f"can't load model {source}: {_line(error)}") from error
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()
    if facts is None or not facts.block_sizes:
        warnings.warn(
            f"{source} was never SBD-trained: decode it with method 'ntp', or fine-tune it with `setblock train`",
            NotTrainedForBlocks,
            stacklevel=2,
        )
    return SBDModel(model, tokenizer, facts=facts)


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Raise `SetBlockError` with the reason if an architecture can't be decoded in blocks."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise SetBlockError(f"{name} is an encoder-decoder; set block decoding needs a decoder-only causal LM")
    text = config.get_text_config()
    try:
        model_class = AutoModelForCausalLM._model_mapping[type(config)]  # type: ignore[attr-defined]
    except KeyError:
        model_class = None
    if getattr(model_class, "_is_stateful", False):
        raise SetBlockError(
            f"{name} keeps a recurrent state (state-space or linear attention), which can't attend within a block in both "
            "directions, nor take back a rejected token"
        )
    if getattr(text, "alibi", False) or name in ("bloom", "mpt"):
        raise SetBlockError(f"{name} uses ALiBi, which ignores position ids; set block decoding needs them")
    try:
        layer_windows(text)
    except ValueError as error:
        raise SetBlockError(f"{name}: {error}") from error


def _attention_for(config: PretrainedConfig) -> str | None:
    """SDPA has no soft-capping of scores; elsewhere Transformers' own choice is the best."""
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    if capped is None:
        return None
    return "flex_attention" if torch.cuda.is_available() else "eager"


def _line(error: BaseException) -> str:
    """The first line of an error's message."""
    return str(error).strip().split("\n")[0]

"""`setblock.load`: loads a model that can be decoded in blocks, or raises an error with the reason."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from setblock import devices
from setblock.errors import SetBlockError, SetBlockWarning, prefixed, warn
from setblock.files import is_gguf
from setblock.heap import keep_freed_memory
from setblock.model.adapter.adapted import load_adapter
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.adapter.files import CONFIG_NAME, WEIGHTS_NAME, adapter_sbd_config, read_lora
from setblock.model.attention.attention import has_state, layer_windows
from setblock.model.loading import gguf
from setblock.model.loading.named import BUNDLED_MODEL, resolved
from setblock.model.loading.source import check_source
from setblock.model.probe.probe import check_stored, plan_attention
from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE, draft_text_of, read_texts
from setblock.model.protocol.sbd_config import SBDModelConfig, read_sbd_config
from setblock.model.runners.state_runner import StateCaches
from setblock.model.sbd_model import SBDModel
from setblock.model.weights import Quantization, four_bits, quantize

_STEPS = logging.getLogger("setblock.steps")
"""Logs steps that may take seconds."""


class NotTrainedForBlocks(SetBlockWarning):
    """The warning about a model that was never trained for blocks."""


def load(
    path: str | Path = BUNDLED_MODEL,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
    adapter: str | Path | None = None,
) -> SBDModel:
    """Load a causal LM from a local folder, a hub id, a GGUF file or by a short name such as `smollm2`.

    A model that was never trained for blocks loads with a warning. It can be trained, and it decodes by `ntp` and by `exact`,
    which then copies its drafts from the text.

    Args:
        path: a folder, a hub id, a GGUF file, or a name: `bundled` or one of `NAMED_MODELS`. The default is the bundled
            model. Or a folder with a delta from one of these (`models/`). The weights of a GGUF file are dequantised.
        dtype: the type of the weights. The default is the checkpoint's own type.
        device: the device of the model. The default is a GPU if there is one. `meta`: its weights are not read.
        attn_implementation: `sdpa`, `flex_attention` or `eager`; the default is the fastest that the model allows.
        trust_remote_code: run the checkpoint's own code. The default is False.
        quantization: `int8`: weights of linear layers in eight bits, by torchao (the extra `quantize`). Such a
            model can decode, but it cannot be trained or saved. `nf4`: in four bits, by bitsandbytes, on a GPU; an
            adapter can be trained on such a model.
        adapter: a folder with an adapter on the future block of this model: `sbd_adapter` of a checkpoint, one that `setblock
            export` wrote, or a UNO adapter (arXiv 2609.04010). It drafts, and the model's own text stays what it is.

    Raises:
        SetBlockError: the model does not exist, one of its files is damaged, its architecture does not support blocks,
            or a required package or device is missing.
    """
    # 1. The kind of model
    if quantization not in (None, *get_args(Quantization)):
        raise SetBlockError(f"quantization must be one of {', '.join(get_args(Quantization))}, not {quantization!r}")
    source = resolved(str(path))
    check_source(source)
    if quantization is not None and is_gguf(source):
        raise SetBlockError(
            f"model {source}: quantization {quantization} is not possible for a GGUF file, whose weights are dequantised"
        )
    metadata = gguf.metadata_of(source) if is_gguf(source) else None  # first, as it says whether the file is whole
    config = _config_of(source, trust_remote_code)
    with prefixed(f"model {source}"):
        refuse_unsupported(config)
        vocab_size = config.get_text_config().vocab_size
        sbd_config = (
            read_sbd_config(config) if metadata is None else gguf.sbd_config_in(metadata, source, vocab_size=vocab_size)
        )

    if adapter is not None:
        if sbd_config is not None and sbd_config.noisy_adapter:
            raise SetBlockError(f"model {source} has an adapter on its future block already: load it without another")
        sbd_config = adapter_sbd_config(Path(adapter), vocab_size=vocab_size)
        lora = read_lora(Path(adapter), row=sbd_config.mask_token_id is not None)

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise SetBlockError(f"can't use device {device!r}: {_line(error)}") from error
    devices.check(device)
    if quantization is not None and sbd_config is not None and sbd_config.noisy_adapter:
        raise SetBlockError(
            f"model {source} has an adapter on its future block, and can't be quantised: load it without quantization"
        )

    # 2. Tokenizer and weights
    tokenizer = _tokenizer_of(source, trust_remote_code, metadata)
    usual = None  # Transformers' choice, which is best, but SDPA has no soft-capping of scores
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
        usual = "flex_attention" if device.type == "cuda" else "eager"
    in_four_bits = {"quantization_config": four_bits()} if quantization == "nf4" else {}
    _STEPS.info("reading the weights of %s", path)
    with _reading(source, "its weights"):
        model, report = _auto_class(config).from_pretrained(
            **gguf.weights_arguments(source),
            dtype=dtype or "auto",
            attn_implementation=attn_implementation or usual,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            device_map={"": device} if in_four_bits or device.type == "meta" else None,
            **in_four_bits,
        )
    _check_weights(source, report)
    unmade = next((name for name, each in model.named_parameters() if each.is_meta and str(device) != "meta"), None)
    if unmade is not None:  # else moving the model to a device would fail
        raise SetBlockError(f"model {source}: Transformers could not make {unmade} of its weights; download it again")
    if metadata is not None:  # Transformers does not read setblock's own keys
        model.generation_config.eos_token_id = list(gguf.end_of_text_in(metadata, source)) or config.eos_token_id
        if sbd_config is not None:
            sbd_config.write_to(model.config)
    if sbd_config is not None and sbd_config.noisy_adapter:
        with _reading(source, "its adapter"):
            if adapter is None:
                at_home = [cached_file(source, f"{ADAPTER_FOLDER}/{name}") for name in (CONFIG_NAME, WEIGHTS_NAME)]
                lora = read_lora(Path(at_home[0]).parent, row=True)
            load_adapter(model, *lora)

    # 3. Storage of the weights, and device
    if quantization == "int8":
        check_stored(model, quantize, "quantised to int8")
        quantize(model)
    try:
        model = model.eval() if in_four_bits else model.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # PyTorch raises AssertionError if it was not built for the device
        raise SetBlockError(f"can't use device {str(device)!r}: {_line(error)}") from error
    if model.device.type == "cpu":
        keep_freed_memory()
    _STEPS.info("trying out how %s is called, on a small copy of it", config.model_type)
    with prefixed(f"model {source}"):
        plan = plan_attention(model, alternatives=() if attn_implementation else ("eager",))
    if plan.context is not None:
        warn(f"{source} is right for {plan.context} tokens at most, prompt and answer together: {plan.context_reason}")
    sbd = SBDModel(model, tokenizer, sbd_config=sbd_config, quantization=quantization)
    if metadata is None:
        texts = None
        with suppress(OSError):  # no draft text, or no connection to the hub; the text is optional
            texts = cached_file(source, DRAFT_TEXT_FILE)
        if texts is not None:
            sbd.draft_text = draft_text_of(read_texts(Path(texts)), sbd)
    if adapter is None:
        warn_if_untrained(source, sbd_config)
    return sbd


def warn_if_untrained(source: str, sbd_config: SBDModelConfig | None) -> None:
    """Warn if a model was never trained for blocks, with the caller's caller as the source of the warning."""
    if sbd_config is None or not sbd_config.block_sizes:
        warn(
            f"{source} was never trained for blocks: method 'exact' copies its drafts from the text; fine-tune it with "
            "`setblock train` to gain more",
            NotTrainedForBlocks,
        )


def load_tokenizer(path: str | Path) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Load the config and the tokenizer of a checkpoint, which needs no weights. Raise `SetBlockError` if one of them does not
    exist or is damaged."""
    source = resolved(str(path))
    check_source(source, needs_weights=False)
    metadata = gguf.metadata_of(source) if is_gguf(source) else None  # first, as it says whether the file is whole
    return _config_of(source, False), _tokenizer_of(source, False, metadata)


def load_config(path: str | Path) -> PretrainedConfig:
    """Load the config of a checkpoint, which needs no other files. Raise `SetBlockError` if it does not exist or is
    damaged."""
    source = resolved(str(path))
    check_source(source, needs_weights=False)
    return _config_of(source, False)


def has_tokenizer(path: str | Path) -> bool:
    """Return whether a checkpoint has a tokenizer. A checkpoint on the hub is assumed to have one."""
    folder = Path(resolved(str(path)))
    return not folder.is_dir() or any(file for pattern in _TOKENIZERS for file in folder.glob(pattern))


def load_generation_config(path: str | Path) -> GenerationConfig | None:
    """Load the generation config of a checkpoint, or return None if it has none."""
    source = resolved(str(path))
    if is_gguf(source):
        return None
    try:
        return GenerationConfig.from_pretrained(source)
    except OSError:
        return None


def _config_of(source: str, trust_remote_code: bool) -> PretrainedConfig:
    with _reading(source, "its config"):
        return AutoConfig.from_pretrained(**gguf.pretrained_arguments(source), trust_remote_code=trust_remote_code)


def _tokenizer_of(source: str, trust_remote_code: bool, metadata: gguf.Metadata | None) -> PreTrainedTokenizerBase:
    if metadata is not None:
        return gguf.tokenizer_in(metadata, source)
    if not has_tokenizer(source):
        raise SetBlockError(
            f"model {source} has no tokenizer: the folder has no tokenizer.json; save the tokenizer there"
        )
    with _reading(source, "its tokenizer"):
        return AutoTokenizer.from_pretrained(**gguf.pretrained_arguments(source), trust_remote_code=trust_remote_code)


_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json", "tokenizer_config.json")
"""Tokenizer files; a folder with a tokenizer has at least one of them."""


@contextmanager
def _reading(source: str, part: str) -> Iterator[None]:
    """Turn any error that Transformers raises over a broken or missing file into a `SetBlockError`. The errors range from
    KeyError to ZeroDivisionError, so only calls to Transformers belong inside."""
    try:
        yield
    except SafetensorError as error:
        raise SetBlockError(
            f"model {source}: its safetensors file is corrupt or truncated ({_line(error)}): download it again"
        ) from error
    except Exception as error:
        if "`CONVERSION` entries" in str(error):  # it refers to a report that is not shown
            raise SetBlockError(f"model {source}: some of its weights have other shapes than by its config") from error
        where = "" if Path(source).exists() else "the hub does not give it: "
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise SetBlockError(f"can't load model {source}: {where}{part}: {kind}{_line(error)}") from error


def _check_weights(source: str, report: dict[str, Any]) -> None:
    """Raise `SetBlockError` for a checkpoint that leaves some weights at their random initial values."""
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        raise SetBlockError(
            f"model {source}: {name} has shape {list(stored)} in its weights, and {list(wanted)} by its config"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise SetBlockError(
            f"model {source}: {len(missing)} of its weights are missing, {missing[0]} the first; save or download it again"
        )


_MOST = {"num_hidden_layers": 1000, "hidden_size": 1_000_000, "vocab_size": 10_000_000}
"""Sizes from which on a config is taken to be broken. Making a model of that size would take hours or all memory before the
mismatch with the weights is found."""


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Raise `SetBlockError` with the reason if an architecture does not support blocks, or if its sizes are unrealistic."""
    name = config.model_type
    for size, most in _MOST.items():
        value = getattr(config.get_text_config(), size, None)
        if isinstance(value, int) and not 1 <= value <= most:
            raise SetBlockError(f"{size} in the config must be between 1 and {most}, not {value}")
    if config.is_encoder_decoder:
        raise SetBlockError(f"{name} is an encoder-decoder; set block decoding needs a decoder-only causal LM")
    auto = _auto_class(config)
    text = config.get_text_config()
    is_stateful = getattr(auto._model_mapping.get(type(config), None), "_is_stateful", False)
    with prefixed(name, ValueError):
        if is_stateful or has_state(config):
            StateCaches(config)
        else:
            layer_windows(text)
    if is_stateful and not has_state(config):
        raise SetBlockError(
            f"{name} keeps a recurrent state outside of Transformers' cache, where it can't be put back"
        )
    if getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        raise SetBlockError(f"{name} uses ALiBi, which ignores position ids; set block decoding needs them")


def _auto_class(config: PretrainedConfig) -> Any:
    """Return the class of a config's causal LM: a text model, or a multimodal one that is given text only. Raise
    `SetBlockError` if Transformers has no such class."""
    for auto in (AutoModelForCausalLM, AutoModelForMultimodalLM):
        if type(config) in auto._model_mapping or auto.__name__ in (getattr(config, "auto_map", None) or {}):
            return auto
    raise SetBlockError(f"{config.model_type} has no causal language model in Transformers {transformers.__version__}")


def _line(error: BaseException) -> str:
    """Return the first line of an error's message, with the following ones as long as a sentence is unfinished."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    end = next((n for n, line in enumerate(lines, start=1) if not line.endswith((":", ",", "("))), len(lines))
    return " ".join(lines[:end])

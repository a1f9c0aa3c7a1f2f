"""A small random copy of a model: its class and the structure of its config, with few and narrow layers.

It works for any model family: the role of a number in a config follows from its value, and from whether weights change their
shape with it.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from setblock.errors import SetBlockError

VOCABULARY = 64  # tokens of a small copy; the first serves as every special token, and never as text
LONGEST = 32  # tokens that every small copy accepts
SMALL_THRESHOLD = 12  # tokens to which a threshold of the config is lowered, so that a longer text crosses it

_WAYS = ((16, True), (8, True), (4, True), (16, False), (8, False), (2, True), (1, True), (1, False))
"""The divisor of widths, and whether layers are left out. The first pair that gives a working model is used."""
_MOST_WEIGHTS = 80_000_000
_WIDE = 64  # numbers from this on are taken for widths
_NARROWEST = 48  # hidden states
_MOST_EXPERTS = 16
_COUNT = re.compile(r"layer|head|group|top_?k|per_tok|codebook|stack|position|window|chunk|len|seq|scalar|distance")
_HEAD_WIDTH = re.compile(r"head_?dim|head_size|dim_head|d_head")
_TOKEN = re.compile(r"token_?(id|ids|index)$")
_NO_THRESHOLD = re.compile(r"head|layer|expert|hidden|intermediate|dim|rank")  # only to save time: these shape weights
_CONTEXT = ("max_position_embeddings", "n_positions", "model_max_length")


class Threshold(NamedTuple):
    """A number of tokens in a config beyond which a model may compute something else."""

    name: str  # its key in the config
    value: int  # the smallest one where the config has several of that name


def small_copy(model: PreTrainedModel, *, device: torch.device | str = "cpu") -> PreTrainedModel:
    """Return a small float32 copy of a model: its class, the structure of its config, and random weights with which tokens
    attend to each other. Raise `SetBlockError` if no working copy can be made."""
    reason = ""
    widest = max(1, getattr(model.config.get_text_config(), "hidden_size", _NARROWEST) // _NARROWEST)
    for factor, cut in _WAYS:
        if factor > widest:
            continue
        try:
            small = _made(type(model), _small_config(model.config, factor=factor, cut=cut)).to(device)
            run_text(small)
            return small
        except Exception as error:  # raised by Transformers for an inconsistent config
            reason = reason or " ".join(f"{type(error).__name__}: {error}".split())[:200]
    raise SetBlockError(f"no small copy of it can be made to try it out ({reason})")


def thresholds_of(config: PretrainedConfig, small: PreTrainedModel) -> list[Threshold]:
    """Return the thresholds in a config whose small copy is `small`: numbers of tokens, which shape no weights."""
    least: dict[str, int] = {}
    for holder, name in _numbers(vars(config.get_text_config())):
        if holder[name] > SMALL_THRESHOLD and name not in _CONTEXT and not _NO_THRESHOLD.search(name):
            least[name] = min(holder[name], least.get(name, holder[name]))
    found = []
    for each in starmap(Threshold, least.items()):
        with suppress(Exception):  # Transformers raises if the number shapes weights or must fit others: no threshold
            run_text(with_low(small, [each]))
            found.append(each)
    return found


def with_low(small: PreTrainedModel, thresholds: Sequence[Threshold]) -> PreTrainedModel:
    """Return the small copy with `thresholds` lowered to a value that a short text crosses."""
    low, names = copy.deepcopy(small.config), {each.name for each in thresholds}
    for holder, name in _numbers(vars(low.get_text_config())):
        if name in names:
            holder[name] = SMALL_THRESHOLD
    lowered = _made(type(small), low).to(small.device)
    lowered.load_state_dict(small.state_dict())
    return lowered


def _made(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # warnings would concern only the copy's config
    try:
        with torch.random.fork_rng(devices=[]):
            with torch.device("meta"):
                weights = sum(each.numel() for each in kind(copy.deepcopy(config)).parameters())
            if weights > _MOST_WEIGHTS:
                raise ValueError(f"{weights:,} weights are too many")
            model = kind(config).float().eval()
    finally:
        logging.set_verbosity(level)
    _draw_weights(model)
    return model


@torch.no_grad()
def _draw_weights(model: PreTrainedModel) -> None:
    """Draw matrices large enough that a wrong mask changes the logits. Norms and biases stay as they are."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            scale = 1.5 / min(weight.shape[-2:]) ** 0.5
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)


def _small_config(config: PretrainedConfig, *, factor: int, cut: bool) -> PretrainedConfig:
    small = copy.deepcopy(config)
    small.dtype = torch.float32
    for part in _parts(small):
        if cut:
            _cut_layers(part)
        for name, value in list(vars(part).items()):
            if name.startswith("_") or isinstance(value, PretrainedConfig):
                continue
            if (narrow := _narrowed(name, value, factor)) != value:
                setattr(part, name, narrow)
    return small


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Yield a config and all configs nested in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)


def _cut_layers(config: PretrainedConfig) -> None:
    """Keep only the first layers: at least two, and one of each kind that a list of the config names."""
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int):
        return
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == total}
    kinds = [value for value in lists.values() if all(isinstance(each, str | int) for each in value)]
    needed = min(total, max([2, *(value.index(kind) + 1 for value in kinds for kind in value)]))
    for name, value in lists.items():
        setattr(config, name, value[:needed])
    for name, value in list(vars(config).items()):
        if name.endswith("layers") and value == total:
            setattr(config, name, needed)
    config.num_hidden_layers = needed


def _narrowed(name: str, value: Any, factor: int) -> Any:
    """Return the small copy's value for the number `value` of a config; anything else is returned as it is."""
    if isinstance(value, dict):
        return {key: _narrowed(str(key), each, factor) for key, each in value.items()}
    if _TOKEN.search(name):
        return [0] * len(value) if isinstance(value, list) else None if value is None else 0
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        if "section" in name:  # sections of a head's width
            return [each // factor for each in value]
        return value[::factor] if name.endswith("factor") else value  # one for each pair of a head's dimensions
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if name in _CONTEXT:
        return max(value, 2 * LONGEST)
    if "vocab" in name:
        return min(value, VOCABULARY)
    if name.endswith("experts"):
        return min(value, _MOST_EXPERTS)
    if _COUNT.search(name) and not _HEAD_WIDTH.search(name):
        return value
    return value // factor if value >= _WIDE and value % factor == 0 else value


def _numbers(values: dict[Any, Any]) -> Iterator[tuple[dict[str, int], str]]:
    """Yield the numbers in a config and its nested dicts, each as the dict that contains it and its key."""
    for name, value in values.items():
        if not isinstance(name, str) or name.startswith("_") or _TOKEN.search(name) or "vocab" in name:
            continue
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield values, name


@torch.no_grad()
def run_text(small: PreTrainedModel) -> torch.Tensor:
    """Return the logits [T, V] of a small copy for the longest text that it accepts."""
    text = torch.arange(LONGEST, device=small.device)[None] % (VOCABULARY - 1) + 1
    logits: torch.Tensor = small(input_ids=text, use_cache=False).logits[0].float()
    return logits

"""The SBD config: what a checkpoint records so that it can be decoded in blocks.

It is stored under one key of the checkpoint's own `config.json`, which stock Transformers keeps and ignores.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from transformers import PretrainedConfig

from setblock.errors import SetBlockError, fault_of

CONFIG_KEY = "setblock"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class CalibratedSetting:
    """The calibrated setting of one method for one domain."""

    domain: str  # what it was calibrated on: a task's name, or the name of a file of prompts
    point: Mapping[str, Any]  # the operating point, as `setblock.evaluation.operating_point` writes it
    tolerance: str  # the tolerance that it keeps, in words
    tested: bool  # whether a test showed that; `exact` keeps it by construction
    nfe_speedup: float  # measured on the examples of the test
    num_examples: int  # their number
    fingerprint: str  # of the model, to detect weights that have changed since

    __pydantic_config__ = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not isinstance(self.point.get("method"), str):
            raise SetBlockError("point of calibrations must name a method")

    @property
    def method(self) -> str:
        """The method of the operating point."""
        return str(self.point["method"])


@dataclass(frozen=True)
class SBDModelConfig:
    """The SBD config of a model: what SBD fine-tuning fixed.

    Attributes:
        mask_token_id: id of the mask token m; None where noise is uniform.
        block_sizes: the block sizes that were trained, sorted; empty before any training.
        logit_shift: whether the output at a masked position predicts that position (False, the paper) or the next (True).
        first_token_from_causal: whether a block's first token is read from the causal logit of the last committed token.
            Always True with `logit_shift`, where no block output predicts it.
        noisy_adapter: whether the checkpoint holds, in a separate folder, an adapter that acts on the future block alone.
        noise_vocab_size: for uniform noise: random ids below this take the place of the mask token, in training and in
            decoding. None where there is a mask token.
        causal_block: whether a token of a block sees no later one of it (False, the paper: each sees all of its block).
        calibrations: settings that were found to keep a tolerance, one for each domain and method at most.
        version: version of this format.
    """

    mask_token_id: Annotated[int, Field(ge=0)] | None
    block_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    logit_shift: bool = False
    first_token_from_causal: bool = False
    noisy_adapter: bool = False
    noise_vocab_size: Annotated[int, Field(ge=1)] | None = None
    causal_block: bool = False
    calibrations: tuple[CalibratedSetting, ...] = ()
    version: int = FORMAT_VERSION

    __pydantic_config__ = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if self.logit_shift and not self.first_token_from_causal:
            raise SetBlockError("logit_shift needs first_token_from_causal: no block output predicts the first token")
        if (self.mask_token_id is None) == (self.noise_vocab_size is None):
            raise SetBlockError("either mask_token_id or noise_vocab_size must be given, and not both")

    @property
    def noise_ids(self) -> range:
        """The token ids that may stand at masked positions: the mask token's, or all ids of uniform noise."""
        if self.mask_token_id is None:
            return range(self.noise_vocab_size or 0)
        return range(self.mask_token_id, self.mask_token_id + 1)

    @property
    def special_form(self) -> str | None:
        """For messages: what the blocks have in common with UNO (arXiv 2609.04010) and not with the paper; None if nothing."""
        parts = ["uniform noise"] * (self.mask_token_id is None) + ["causal blocks"] * self.causal_block
        return " and ".join(parts) or None

    def write_to(self, config: PretrainedConfig) -> None:
        """Record the SBD config in a model's config."""
        setattr(config, CONFIG_KEY, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the SBD config as stored in `config.json`, without unneeded keys that earlier releases reject."""
        recorded = {name: list(each) if isinstance(each, tuple) else each for name, each in asdict(self).items()}
        for name in ("mask_token_id", "noise_vocab_size", "causal_block", "noisy_adapter", "calibrations"):
            if recorded[name] is None or recorded[name] is False or recorded[name] == []:
                del recorded[name]
        return recorded


def read_sbd_config(config: PretrainedConfig) -> SBDModelConfig | None:
    """Return the SBD config recorded in a model's config, or None. Raise `SetBlockError` if it is not valid."""
    recorded = getattr(config, CONFIG_KEY, None)
    if recorded is None:
        return None
    return sbd_config_from_json(recorded, vocab_size=config.get_text_config().vocab_size, where="config.json")


def sbd_config_from_json(recorded: Any, *, vocab_size: int, where: str) -> SBDModelConfig:
    """Return the SBD config that `SBDModelConfig.to_json` wrote. Raise `SetBlockError`, naming `where`, if it is not valid."""
    if not isinstance(recorded, dict):
        raise SetBlockError(f"{where}: {CONFIG_KEY!r} must be an object, not {type(recorded).__name__}")
    if (version := recorded.get("version")) != FORMAT_VERSION:
        raise SetBlockError(
            f"{where}: {CONFIG_KEY}.version is {version!r}, this release reads {FORMAT_VERSION}: install a newer "
            "release of setblock"
        )
    try:
        sbd_config = _FACTS.validate_json(json.dumps({"mask_token_id": None, **recorded}), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "value_error":  # raised by the classes above
            raise SetBlockError(f"{where}: {CONFIG_KEY}: {problem['ctx']['error']}") from error
        key = ".".join(map(str, (CONFIG_KEY, *problem["loc"])))
        raise SetBlockError(f"{where}: {fault_of(key, problem)}") from error
    for name, most in (("mask_token_id", vocab_size - 1), ("noise_vocab_size", vocab_size)):
        if (getattr(sbd_config, name) or 0) > most:
            raise SetBlockError(f"{where}: {CONFIG_KEY}.{name} must be at most {most}, not {getattr(sbd_config, name)}")
    return replace(sbd_config, block_sizes=tuple(sorted(sbd_config.block_sizes)))


_FACTS = TypeAdapter(SBDModelConfig)

"""The model options: from what was typed to a loaded model."""

import warnings
from typing import TYPE_CHECKING

from setblock.cli.messages import silence_libraries
from setblock.cli.options import Dtype
from setblock.errors import SetBlockError

if TYPE_CHECKING:
    from setblock.model.sbd_model import SBDModel


def load_model(
    path: str | None, *, dtype: Dtype, device: str | None, trust_remote_code: bool, blocks: bool
) -> "SBDModel":
    """Load the model of `--model`, or the bundled one.

    Args:
        blocks: whether it is to be decoded in blocks.

    Raises:
        SetBlockError: it can't be loaded, or has no mask token and `blocks` needs one.
    """
    import torch

    from setblock.model.bundled import BUNDLED_MODEL
    from setblock.model.loading import NotTrainedForBlocks, load

    silence_libraries()
    with warnings.catch_warnings(record=True) as caught:
        model = load(
            path or BUNDLED_MODEL,
            dtype=None if dtype == "auto" else getattr(torch, dtype),
            device=device,
            trust_remote_code=trust_remote_code,
        )
    if blocks and model.facts is None:  # one line, not the warning and then the error
        raise SetBlockError(
            f"model {path} has no mask token: decode it with method ntp, or fine-tune it with `setblock train`"
        )
    for warning in caught:
        if blocks or not issubclass(warning.category, NotTrainedForBlocks):
            warnings.warn(warning.message, stacklevel=2)
    return model

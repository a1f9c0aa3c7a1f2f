"""Write adapters in UNO's form (arXiv 2609.04010): plain LoRA of PEFT, which acts on uniform noise in causal blocks.

Knows what SGLang's `--uno-lora-path` reads of PEFT's two files. Knows nothing of models.
"""

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from setblock.errors import SetBlockError
from setblock.model.adapter.files import CONFIG_NAME, WEIGHTS_NAME, read_lora
from setblock.model.protocol.facts import SBDFacts

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def uno_facts(vocab_size: int) -> SBDFacts:
    """Return the facts of a base model with V tokens and a UNO adapter, which records no block size."""
    return SBDFacts(
        None,
        logit_shift=True,
        first_token_from_causal=True,
        noisy_adapter=True,
        noise_vocab_size=vocab_size,
        causal_block=True,
    )


def write_uno(source: Path, facts: SBDFacts | None, folder: Path) -> None:
    """Write the adapter of a checkpoint as SGLang reads it, in bfloat16. The folder appears once it is whole.

    Args:
        source: the folder of the adapter.
        facts: of the checkpoint.
        folder: must not exist.

    Raises:
        SetBlockError: the checkpoint has no such adapter, the form is another, or the folder can't be written.
    """
    if facts is None or not facts.noisy_adapter:
        raise SetBlockError("only an adapter on the future block (adapter.only_noisy) can be exported for UNO")
    wrong = [
        name
        for name, holds in (
            ("training.noise uniform", facts.noise_vocab_size is not None),
            ("training.block_attention causal", facts.causal_block),
            ("training.logit_shift true", facts.logit_shift),
        )
        if not holds
    ]
    if wrong:
        raise SetBlockError(f"the adapter was not trained in UNO's form: it needs {', '.join(wrong)}")
    config, weights = read_lora(source)
    layers = {name.split(".")[-3] for name in weights}
    attention = layers & {"q_proj", "k_proj", "v_proj"}
    if layers - _PROJECTIONS or (attention and not {"q_proj", "v_proj"} <= layers):
        raise SetBlockError(
            f"SGLang takes adapters of {', '.join(sorted(_PROJECTIONS))}, q_proj with v_proj, "
            f"not of {', '.join(sorted(layers))}"
        )
    if folder.exists():
        raise SetBlockError(f"{folder} exists already: --uno must name a new folder")
    config |= {"target_modules": sorted(layers), "base_model_name_or_path": None}
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            whole = Path(temporary) / folder.name
            whole.mkdir()
            (whole / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            rounded = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
            save_file(rounded, whole / WEIGHTS_NAME, metadata={"format": "pt"})
            (whole / WEIGHTS_NAME).chmod((whole / CONFIG_NAME).stat().st_mode)
            os.replace(whole, folder)
    except OSError as error:
        raise SetBlockError(f"can't write {folder}: {error}") from error

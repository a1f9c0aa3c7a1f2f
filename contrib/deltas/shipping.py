"""Make of a trained run what the package ships for a named model.

Knows a run's folder and the files that `setblock.model.loading.named` reads. Knows nothing of training.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from deltas.packing import Form, packed_delta
from deltas.trained import TrainedChange
from setblock.errors import SetBlockError
from setblock.files import FACTS_FILE
from setblock.model.loading.named import BASE_KEY, DELTA_FILE, resolved
from setblock.model.protocol.sbd_config import CONFIG_KEY

FORM, FORMS = Form(92, bits=3), {"embed_tokens": Form(16, bits=8)}
"""Of a delta's factors. The change of the embeddings has a lower rank than that of other matrices. Rounding harms it more."""


def ship_delta(run: Path, folder: Path, *, base: str) -> None:
    """Make of a run that trained all weights what the package ships: their delta from the base model, and the facts.

    Args:
        run: a folder that `setblock train` wrote.
        folder: where to; made if need be.
        base: the named model that the run, or the first of several, started from.

    Raises:
        SetBlockError: the run was not trained for blocks, or not all of its weights were.
    """
    facts = _facts_of(run)
    if not facts or facts.get("noisy_adapter"):
        raise SetBlockError(f"{run} holds no model whose weights were all trained for blocks")
    tuned, start = load_file(run / "model.safetensors"), load_file(Path(resolved(base)) / "model.safetensors")
    _write_facts(facts, folder)
    packed = packed_delta(start, tuned, form=FORM, forms=FORMS, rows=rows_of_facts(facts, start))
    _save(packed, folder / DELTA_FILE, base=base)


def ship_changes(
    changes: Mapping[str, TrainedChange],
    vectors: Mapping[str, Tensor],
    facts: dict[str, Any],
    folder: Path,
    *,
    base: str,
) -> None:
    """Make of a delta that was trained in the form in which it is stored what the package ships.

    Args:
        changes: of the matrices, by name.
        vectors: all other weights, by name.
        facts: the model's, as its config has them.
        folder: where to; made if need be.
        base: the named model that the first run started from.
    """
    packed = {name: vector.float() for name, vector in vectors.items()}
    for name, change in changes.items():
        packed |= change.packed(name)
    _write_facts(facts, folder)
    _save(packed, folder / DELTA_FILE, base=base)


def rows_of_facts(facts: Mapping[str, Any], weights: Iterable[str]) -> dict[str, list[int]]:
    """Return the rows that are stored as they are, by the matrix's name: the mask token's embedding."""
    return {name: [facts["mask_token_id"]] for name in weights if "embed_tokens" in name}


def _save(tensors: dict[str, Tensor], file: Path, *, base: str) -> None:
    save_file(tensors, file, metadata={BASE_KEY: base})
    file.chmod(0o644)  # safetensors leaves its files to their owner alone


def _facts_of(run: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((run / "config.json").read_text()).get(CONFIG_KEY, {})
    return facts


def _write_facts(facts: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")

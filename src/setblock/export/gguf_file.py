"""Write a model as a GGUF file, which stock llama.cpp runs as any other and which records what setblock needs.

Knows the order of things in a file, and types of numbers. Knows nothing of any family, nor of tokenizers.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import gguf
import gguf.quants
import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from setblock.errors import SetBlockError, check_one_of
from setblock.export.families import family_of, tensors_of, write_config
from setblock.export.vocabulary import write_vocabulary
from setblock.model.loading.gguf import END_OF_TEXT_KEY, FACTS_KEY
from setblock.model.sbd_model import SBDModel

WeightType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""What matrices are stored as, by GGML's names; the `gguf` package writes these."""


def write_gguf(sbd: SBDModel, path: Path, *, weights: WeightType = "f16") -> None:
    """Write a model, its tokenizer and its SBD facts. The file appears once it is whole. Raise `SetBlockError` if the model has
    an adapter or is quantised, llama.cpp does not know its family or its tokenizer, or the file can't be written."""
    if sbd.gate is not None:
        raise SetBlockError(
            "a model with an adapter on its future block can't be exported: llama.cpp has no place for it; "
            "--runtime transformers decodes the checkpoint"
        )
    if sbd.facts is not None and sbd.facts.special_form:
        raise SetBlockError(
            f"a model with {sbd.facts.special_form} can't be exported: llama.cpp's blocks are not so; --runtime transformers "
            "decodes the checkpoint"
        )
    if sbd.quantization is not None or sbd.prepacked:
        raise SetBlockError(
            "a model whose weights are quantised or prepacked can't be exported: load it without --quantization and --prepack"
        )
    facts = sbd.facts
    with model_file(sbd.model, path, weights=weights) as writer:
        mask_token_id = None if facts is None else facts.mask_token_id
        write_vocabulary(writer, sbd.tokenizer, size=sbd.vocab_size, mask_token_id=mask_token_id)
        writer.add_string(END_OF_TEXT_KEY, json.dumps(list(sbd.end_of_text_ids)))
        if facts is not None:
            writer.add_string(FACTS_KEY, json.dumps(facts.to_json()))


@contextmanager
def model_file(model: PreTrainedModel, path: Path, *, weights: WeightType) -> Iterator[gguf.GGUFWriter]:
    """Write config and weights, and between them what the caller writes of the vocabulary. Errors are those of `write_gguf`."""
    check_one_of("type", weights, get_args(WeightType))
    family = family_of(model)
    temporary = path.with_name(f".{path.name}.writing")
    writer = gguf.GGUFWriter(temporary, family.architecture)
    try:
        writer.add_type(gguf.GGUFType.MODEL)
        if name := Path(model.name_or_path).name:
            writer.add_name(name)
        writer.add_file_type(int(gguf.LlamaFileType[f"{'ALL' if weights == 'f32' else 'MOSTLY'}_{weights.upper()}"]))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        write_config(writer, model, family)
        yield writer
        for name, weight in tensors_of(model, family):
            values, kind = _stored(name, weight, weights)
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(temporary, path)
    except OSError as error:
        raise SetBlockError(f"can't write {path}: {error.strerror}") from error
    finally:
        writer.close()
        temporary.unlink(missing_ok=True)


def _stored(name: str, weight: Tensor, weights: WeightType) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Return a weight as it is stored: vectors in float32, matrices whose rows no quantised type divides in float16, and
    embeddings and head in eight bits at least."""
    values = weight.detach().float().cpu().contiguous().numpy()
    kind = gguf.GGMLQuantizationType[weights.upper()]
    if kind.name.startswith(("Q4", "Q5")) and name in ("token_embd.weight", "output.weight"):
        kind = gguf.GGMLQuantizationType.Q8_0  # since they suffer most
    if values.ndim == 1:
        kind = gguf.GGMLQuantizationType.F32
    elif values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F16
    return gguf.quants.quantize(values, kind), kind

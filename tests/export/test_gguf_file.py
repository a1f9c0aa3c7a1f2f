"""A checkpoint as a GGUF file: setblock reads back what it wrote, and llama.cpp's tokenizer is the checkpoint's."""

import copy
import errno
import json
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import setblock
from conftest import TEXTS
from families import tiny_sbd
from setblock.errors import ParameterError, SetBlockError
from setblock.export.gguf_file import WeightType, write_gguf
from setblock.integrations.llama_cpp.library import ModelFile, is_installed
from setblock.integrations.llama_cpp.options import LlamaOptions
from setblock.model.loading.loading import load_tokenizer
from setblock.model.protocol.sbd_config import CalibratedSetting, SBDModelConfig
from setblock.model.sbd_model import SBDModel

CALIBRATED = CalibratedSetting(
    domain="word-problems",
    point={"method": "exact", "sampler": "entropy-bounded", "sampler_options": {"gamma": 1.0}, "block_size": 8},
    tolerance="none",
    tested=True,
    nfe_speedup=2.5,
    num_examples=10,
    fingerprint="0",
)
SAMPLE = "Tom's 12 apples,  and\n\n\tNAÏVE café: 中文 🙂 x_1 == 3.14; <tag/>  "


@pytest.fixture
def sbd(tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return tiny_sbd("llama", tokenizer, mode="shifted")


@pytest.mark.parametrize("form", [{"noise": "uniform"}, {"causal_block": True}])
def test_blocks_that_llama_cpp_has_not_are_refused(sbd: SBDModel, tmp_path: Path, form: dict[str, Any]) -> None:
    sbd.prepare_for_training(block_sizes=[4], logit_shift=True, **form)
    with pytest.raises(SetBlockError, match=r"with (uniform noise|causal blocks) can't be exported"):
        write_gguf(sbd, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_read_back(sbd: SBDModel, tmp_path: Path) -> None:
    assert sbd.sbd_config is not None
    sbd.sbd_config = SBDModelConfig(**{**vars(sbd.sbd_config), "calibrations": (CALIBRATED,)})
    sbd.end_of_text_ids = (0, 5, 9)
    sbd.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    path = tmp_path / "model.gguf"
    write_gguf(sbd, path, weights="f32")
    again = setblock.load(path)
    assert again.sbd_config == sbd.sbd_config
    assert again.end_of_text_ids == (0, 5, 9)
    assert again.tokenizer.chat_template == sbd.tokenizer.chat_template
    assert again.tokenizer(SAMPLE).input_ids == sbd.tokenizer(SAMPLE).input_ids
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in sbd.model.state_dict().items())
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]
    again.save(tmp_path / "saved")
    assert setblock.load(tmp_path / "saved").sbd_config == sbd.sbd_config


def test_what_closes_a_turn_ends_an_answer_in_llama_cpp(sbd: SBDModel, tmp_path: Path) -> None:
    """Where it is another token than the tokenizer's end of text."""
    assert sbd.end_answers_as_trained() == ()
    sbd.tokenizer.chat_template = "{% for m in messages %}{{ m.content + '<|reserved_special_token_2|>' }}{% endfor %}"
    assert sbd.end_answers_as_trained() == (3,)
    write_gguf(sbd, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("eos", "eot")] == [0, 3]
    assert setblock.load(tmp_path / "model.gguf").end_of_text_ids == (0, 3)


@pytest.mark.parametrize("weights", ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_types_of_weights(weights: WeightType, sbd: SBDModel, tmp_path: Path) -> None:
    """Matrices come back within what their type rounds; vectors are never rounded."""
    write_gguf(sbd, tmp_path / "model.gguf", weights=weights)
    kinds = {each.name: each.tensor_type.name.lower() for each in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == weights
    assert kinds["blk.0.ffn_down.weight"] == ("f16" if weights.startswith("q") else weights)  # rows of 48
    assert kinds["token_embd.weight"] == ("q8_0" if weights[:2] in ("q4", "q5") else weights)
    assert kinds["output_norm.weight"] == "f32"
    found = setblock.load(tmp_path / "model.gguf", dtype=torch.float32).model.state_dict()
    for name, weight in sbd.model.state_dict().items():
        bits = 4 if weights.startswith("q4") else 5 if weights.startswith("q5") else 8
        assert (found[name] - weight).abs().max() <= 2.0 ** (1 - bits) * weight.abs().max()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("3072 requested and 512 written"), "only a part could be written, is the disk full"),  # of NumPy
    ],
)
def test_a_file_appears_once_it_is_whole(
    error: OSError, said: str, sbd: SBDModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(SetBlockError, match=rf"can't write .*model\.gguf: {said}"):
        write_gguf(sbd, tmp_path / "model.gguf")
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_can_not_be_written(sbd: SBDModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can anything be deleted in it."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(SetBlockError, match=r"can't write .*model\.gguf: Read-only file system"):
        write_gguf(sbd, tmp_path / "model.gguf")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_a_file_that_was_cut_off(share: float, sbd: SBDModel, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(sbd, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    for read in (setblock.load, load_tokenizer):
        with pytest.raises(
            SetBlockError, match=r"model\.gguf is a damaged or truncated GGUF file: .*download it again"
        ):
            read(path)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gpt2", {}, "models of type gpt2 can't be exported"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar 16 .* must be the size of a head, 8"),
        ("gemma3_text", {}, "every layer except every Nth, N = 6"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type yarn"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    family: str, changes: dict[str, Any], reason: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    with pytest.raises(SetBlockError, match=reason) as caught:
        write_gguf(tiny_sbd(family, tokenizer, **changes), tmp_path / "model.gguf")
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


def test_other_types_and_models_are_refused(sbd: SBDModel, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="type must be one of f32, f16"):
        write_gguf(sbd, tmp_path / "model.gguf", weights="q3")  # type: ignore[arg-type]
    sbd.quantization = "int8"
    with pytest.raises(SetBlockError, match="quantised"):
        write_gguf(sbd, tmp_path / "model.gguf")


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(sbd: SBDModel, tmp_path: Path) -> None:
    sbd.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(SetBlockError, match="no name for how it splits a text"):
        write_gguf(sbd, tmp_path / "model.gguf")


def byte_level(*steps: pre_tokenizers.PreTokenizer, use_regex: bool = False) -> Tokenizer:
    found = Tokenizer(BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    found.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(TEXTS, BpeTrainer(vocab_size=320, special_tokens=["<end>"], initial_alphabet=alphabet))
    return found


def with_byte_fallback(*, space_before: bool) -> Tokenizer:
    found = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if space_before else []
    found.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    special = ["<end>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = BpeTrainer(vocab_size=500, special_tokens=special)
    found.train_from_iterator([text.replace(" ", "▁") for text in TEXTS], trainer)
    whole = json.loads(found.to_str())
    whole["added_tokens"] = whole["added_tokens"][:2]  # bytes are tokens, but not special ones
    return Tokenizer.from_str(json.dumps(whole))


def split(regex: str) -> pre_tokenizers.PreTokenizer:
    from tokenizers import Regex

    return pre_tokenizers.Split(Regex(regex), behavior="isolated")


WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
TOKENIZERS = {
    "gpt-2": lambda: byte_level(use_regex=True),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "llama-bpe": lambda: byte_level(split(CONTRACTIONS + WORDS % "{1,3}")),
    "qwen2": lambda: byte_level(split(CONTRACTIONS + WORDS % "")),
    "ufakzeka": lambda: byte_level(split(WORDS % "")),
    "space before": lambda: with_byte_fallback(space_before=True),
    "no space before": lambda: with_byte_fallback(space_before=False),
}


@pytest.mark.skipif(not is_installed(), reason="llama.cpp is not installed")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_llama_cpp_splits_texts_as_the_checkpoint_does(name: str, tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[name](), eos_token="<end>")
    sbd = tiny_sbd("llama", copy.deepcopy(tokenizer))
    write_gguf(sbd, tmp_path / "model.gguf", weights="f32")
    file = ModelFile(tmp_path / "model.gguf", LlamaOptions(n_threads=1))
    for text in (SAMPLE, *TEXTS, "can't WE'LL it's", " 1234 5", "a\r\n b\n\n"):
        assert file.tokens_of(text) == sbd.tokenizer(text, add_special_tokens=False).input_ids

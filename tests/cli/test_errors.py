"""A user's mistakes are reported in one line, with nothing on stdout: exit code 2 for an option, else 1."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, T5Config

from setblock.cli.app import app
from setblock.decoding.answer.generation import Failure
from setblock.engine.generate import generate_batch


def _refused(outcome, *parts, code=1):
    assert outcome.code == code
    assert outcome.stdout == ""
    assert outcome.message.startswith("setblock: error: ")
    for part in parts:
        assert part in outcome.message


def _edit_config(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gamma", "-1"], "gamma must be at least 0, not -1.0"),
        (["--gamma", "nan"], "gamma must be at least 0, not nan"),
        (["--gamma", "1", "--sampler", "fixed-count"], "sampler fixed-count has no 'gamma'"),
        (["--sampler", "magic"], "sampler must be one of confidence-threshold, "),
        (["--sampler-option", "gama=1"], "did you mean 'gamma'?"),
        (["--block-size", "0"], "block_size must be at least 1, not 0"),
        (["--max-new-tokens", "5", "--min-new-tokens", "6"], "min_new_tokens must be at most max_new_tokens, 5, not 6"),
        (["--logit-bias", "5"], "--logit-bias must be ID=BIAS, such as 42=-1.5, not '5'"),
        (["--logit-bias", "99999=1"], "token ids of logit_bias must be between 0 and "),
        (["--stop-token-id", "99999"], "token ids of stop_token_ids must be between 0 and "),
        (["--stop", ""], "stop must be a text that is not empty, not ''"),
        (["--seed", "9" * 20], "seed must be a number of 64 bits"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "Tom"], ["compare", "Tom"], ["evaluate"]])
def test_options_out_of_range(run, sbd_folder, command, arguments, said):
    _refused(run(*command, "--model", sbd_folder, *arguments), said, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--n", "0"], "n must be between 1 and 128, not 0"),
        (["--n", "129"], "n must be between 1 and 128, not 129"),
        (["--logprobs", "21", "--json"], "logprobs must be between 0 and 20, not 21"),
        (["--logprobs", "2"], "--logprobs needs --json"),
    ],
)
def test_what_generate_alone_can_tell(run, sbd_folder, arguments, said):
    _refused(run("generate", "Tom", "--model", sbd_folder, *arguments), said, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-new-tokens", "5000"], "the context holds 512"),
        (["--device", "toaster"], "can't use device 'toaster'"),
    ],
)
def test_what_this_model_or_machine_can_t_do(run, sbd_folder, arguments, said):
    _refused(run("generate", "Tom", "--model", sbd_folder, *arguments), said)


def test_answers_that_are_not_numbers(run, sbd_folder, monkeypatch):
    def broken(*args, **kwargs):
        failure = Failure("the model gave logits that are not numbers after 4 tokens", is_of_form=False)
        return [replace(each, finish_reason="error", error=failure) for each in generate_batch(*args, **kwargs)]

    monkeypatch.setattr("setblock.generate_batch", broken, raising=False)
    _refused(run("generate", "Tom", "--model", sbd_folder, "--n", 2, "--max-new-tokens", 4), "not numbers")


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize(
    ("prompt", "said"), [("", "empty"), (" \n", "empty"), ("9" * 600, "context holds 512"), ("a\udcff", "UTF-8")]
)
def test_prompts(run, sbd_folder, command, prompt, said):
    _refused(run(command, prompt, "--model", sbd_folder), said)


def test_stdin_that_is_not_text(run, sbd_folder):
    _refused(run("generate", "-", "--model", sbd_folder, stdin=b"\xff\xfe"), "UTF-8")


@pytest.mark.parametrize("arguments", [("-",), ("--input", "-", "--output", "-")])
def test_a_closed_stdin(monkeypatch, capsys, arguments):
    """As by `<&-`: Python then has none."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as end:
        app(["generate", *arguments])
    assert end.value.code == 1
    assert capsys.readouterr() == ("", "setblock: error: stdin is closed, so that no prompt could be read from it\n")


@pytest.mark.parametrize("option", ["--limit", "--batch-size"])
def test_evaluation_of_nothing(run, sbd_folder, option):
    _refused(run("evaluate", "--model", sbd_folder, option, 0), "must be at least 1, not 0", code=2)


@pytest.mark.parametrize("command", [["generate", "Tom"], ["compare"], ["evaluate"]])
def test_blocks_of_a_model_without_a_mask_token(run, ntp_folder, command):
    outcome = run(*command, "--model", ntp_folder, "--method", "sbd")
    _refused(outcome, "has no mask token", "method exact or ntp", "setblock train")


def test_unknown_folder(run, tmp_path):
    _refused(run("generate", "Tom", "--model", tmp_path / "nowhere"), "nowhere: no such folder")


def test_unknown_hub_id_without_a_network(run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _refused(
        run("generate", "Tom", "--model", "nobody/nothing"), "nobody/nothing: there is no such folder, and the hub"
    )


def test_a_file_and_an_empty_folder(run, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    _refused(run("generate", "Tom", "--model", tmp_path / "file"), "is a file, not a checkpoint folder")
    _refused(run("generate", "Tom", "--model", tmp_path / "empty"), "has no config.json")


def test_weights_cut_short(run, copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    _refused(run("generate", "Tom", "--model", copied), "corrupt or truncated")


def test_weights_overwritten(run, copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    _refused(run("generate", "Tom", "--model", copied), "corrupt or truncated")


def test_pickled_weights(run, copied):
    (copied / "model.safetensors").unlink()
    torch.save({}, copied / "pytorch_model.bin")
    _refused(run("generate", "Tom", "--model", copied), "no safetensors file")


def test_weights_that_are_not_all_there(run, copied):
    _edit_config(copied, lambda config: config.update(num_hidden_layers=3))
    _refused(run("generate", "Tom", "--model", copied), "weights are missing", "model.layers.2.")


def test_weights_of_another_shape(run, copied):
    _edit_config(copied, lambda config: config.update(intermediate_size=64))
    _refused(run("generate", "Tom", "--model", copied), "has shape [32, 48] in its weights, and [32, 64] by its config")


@pytest.mark.parametrize(
    "content", ['{"a": ', "{}", "[1]", '{"model_type": "abacus"}', '{"model_type": "llama", "head_dim": "x"}']
)
def test_config_that_is_none(run, copied, content):
    (copied / "config.json").write_text(content)
    _refused(run("generate", "Tom", "--model", copied), "can't load model", "its config: ")


@pytest.mark.parametrize("content", [None, "{", '{"a": 1}'])
def test_tokenizer_that_is_none(run, copied, content):
    for path in copied.glob("tokenizer*"):
        path.unlink()
    if content is not None:
        (copied / "tokenizer.json").write_text(content)
    said = "has no tokenizer: the folder has no tokenizer.json" if content is None else "its tokenizer: "
    _refused(run("generate", "Tom", "--model", copied), said)


@pytest.mark.parametrize(
    ("mask_token_id", "said"),
    [
        (None, "either mask_token_id or noise_vocab_size must be given"),
        (-1, "setblock.mask_token_id must be at least 0, not -1"),
        (10**6, "setblock.mask_token_id must be at most 299, not 1000000"),
        (True, "setblock.mask_token_id must be a whole number, not True"),
        ("7", "setblock.mask_token_id must be a whole number, not '7'"),
    ],
)
def test_an_sbd_config_without_a_mask_token(run, copied, mask_token_id, said):
    _edit_config(copied, lambda config: config["setblock"].update(mask_token_id=mask_token_id))
    _refused(run("generate", "Tom", "--model", copied), said)


def test_encoder_decoder(run, copied):
    T5Config(d_model=16, num_layers=1, num_heads=2).save_pretrained(copied)
    _refused(run("generate", "Tom", "--model", copied), "t5 is an encoder-decoder")


def test_state_space_model(run, copied):
    MambaForCausalLM(MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=300, state_size=4)).save_pretrained(
        copied
    )
    _refused(
        run("generate", "Tom", "--model", copied),
        "mamba can't be decoded in blocks: it gives other logits in a pass over several tokens",
    )


def test_usage_errors_exit_with_2(run):
    assert run("generate").code == 2
    assert run("generate", "Tom", "--method", "magic").code == 2
    assert run("compare", "Tom", "--method", "ntp").code == 2
    assert run("evaluate", "--n", 2).code == 2
    assert run("conjure").code == 2

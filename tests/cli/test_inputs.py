"""What no option describes: empty names, numbers beyond all bounds, stdout that takes nothing, an early Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

HUGE = 10**20


@pytest.mark.parametrize("option", ["--block-size", "--min-new-tokens", "--max-new-tokens", "--top-k"])
def test_numbers_beyond_all_bounds(run, sbd_folder, option):
    outcome = run("generate", "Tom", "--model", sbd_folder, option, HUGE)
    name = option.removeprefix("--").replace("-", "_")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.message == f"setblock: error: {name} must be at most {2**31 - 1}, not {HUGE}"


@pytest.mark.filterwarnings("ignore")  # larger than any block that was trained
@pytest.mark.parametrize("block_size", [200_000, 2**31 - 1])
def test_a_block_beyond_the_room_that_is_left(run, sbd_folder, block_size):
    outcome = run("generate", "Tom", "--model", sbd_folder, "--max-new-tokens", 5, "--block-size", block_size)
    assert outcome.code == 0


@pytest.mark.parametrize("command", [["generate", "Tom"], ["compare", "Tom"], ["evaluate"], ["calibrate"]])
def test_an_empty_model_is_not_the_bundled_one(run, command):
    outcome = run(*command, "--model", "")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "model must be a folder, a hub id, a GGUF file or a name, not ''" in outcome.message


def test_a_folder_with_a_gguf_file_says_what_to_name(run, copied):
    for path in copied.glob("*.safetensors"):
        path.rename(path.with_suffix(".gguf"))
    outcome = run("generate", "Tom", "--model", copied)
    assert outcome.code == 1
    assert outcome.message.endswith(f"has no safetensors file: to load its GGUF file, name that, {copied}/model.gguf")


def _started(arguments, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "setblock", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        # A shell's background jobs, these tests perhaps among them, ignore Ctrl-C, and their children would, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **how,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["roofline"], ["roofline", "--json"], pytest.param([], marks=pytest.mark.nightly)])
def test_a_full_disk_behind_stdout(sbd_folder, command):
    """Of the quickest command, and nightly of one that streams."""
    with open("/dev/full", "w") as full:
        streamed = ["generate", "Tom", "--model", sbd_folder, "--max-new-tokens", 4]
        process = _started(command or streamed, stdout=full)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stderr.splitlines()[-1] == "setblock: error: can't write to stdout: No space left on device"
    assert "Traceback" not in stderr


def test_a_closed_stdout():
    command = f'"{sys.executable}" -m setblock roofline >&-'
    process = subprocess.run(
        [shutil.which("sh"), "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 1
    assert process.stderr == "setblock: error: stdout is closed, so that nothing could be written to it\n"


@pytest.mark.parametrize("seconds", [0.1, 0.15, 0.3])
def test_an_early_ctrl_c(sbd_folder, seconds):
    process = _started(["generate", "Tom", "--model", sbd_folder], stdout=subprocess.PIPE)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert stdout == ""
    if "/cli/" in stderr or "interrupted" in stderr:  # else Python was not yet done with what comes before any command
        assert (process.returncode, stderr) == (130, "setblock: interrupted\n")

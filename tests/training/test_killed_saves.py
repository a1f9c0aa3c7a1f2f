"""A process is killed while checkpoints are written: the next run resumes from a whole one, and nothing of the end differs.

    SETBLOCK_KILLS=20 pytest -s -m nightly tests/training/test_killed_saves.py

Four processes train by Accelerate's FSDP2 and save after each step. One of them gets SIGKILL in a save, and the others soon
after it, as torchrun does. Chance draws the process and the moment. Two kills where nothing else is said.
"""

import json
import os
import random
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from setblock.training.run.checkpoints import newest_checkpoint, step_of
from setblock.training.trainer.trainer import SBDTrainer
from training.cases import Case, losses, run, tensors_of
from training.fsdp_on_cpu import allow_fsdp_on_cpu
from training.processes import ends_of, in_processes

KILLS = int(os.environ.get("SETBLOCK_KILLS", "2"))
STEPS = 2 * KILLS + 2
TRAINING: dict[str, Any] = {"max_steps": STEPS, "save_steps": 1, "save_total_limit": 2}
CASE = Case(optimizer="adamw", loss="chunked")


def timed(step: Any, save: Any, seconds: list[float]) -> tuple[Any, Any]:
    """Both methods, which note how long it takes from the beginning of a save to the next step."""
    began: list[float] = []

    def saving(*args: Any, **kwargs: Any) -> Any:
        began.append(time.monotonic())
        return save(*args, **kwargs)

    def stepping(*args: Any, **kwargs: Any) -> Any:
        seconds.extend(time.monotonic() - each for each in began)
        began.clear()
        return step(*args, **kwargs)

    return stepping, saving


def killing(save: Any, number: int, delay: float) -> Any:
    """A way to save whose process dies so many seconds after it begins for the `number`-th time."""
    left = [number]

    def saving(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return save(*args, **kwargs)

    return saving


@pytest.mark.nightly
def test_a_process_killed_in_a_save_loses_nothing(models: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def straight() -> None:
        allow_fsdp_on_cpu()
        seconds: list[float] = []
        SBDTrainer.training_step, SBDTrainer._save_checkpoint = timed(
            SBDTrainer.training_step, SBDTrainer._save_checkpoint, seconds
        )
        assert run(CASE, models, whole, **TRAINING) == "trained"
        print(json.dumps(max(seconds[1:])))

    (tmp_path / "group").mkdir()
    longest = json.loads(in_processes(4, straight, tmp_path / "group")[0].splitlines()[-1])
    draw = random.Random(0)
    for kill in range(1, KILLS + 1):
        rank, number, delay = draw.randrange(4), draw.randint(1, 2), draw.uniform(0, longest)

        def killed(rank: int = rank, number: int = number, delay: float = delay) -> None:
            allow_fsdp_on_cpu()
            warnings.simplefilter("ignore")  # ours of what is passed over, PyTorch's of what it overwrites
            if os.environ["RANK"] == str(rank):
                SBDTrainer._save_checkpoint = killing(SBDTrainer._save_checkpoint, number, delay)
            print(run(CASE, models, broken, **TRAINING))

        (tmp_path / f"kill-{kill}").mkdir()
        before = newest_checkpoint(broken)
        ends = ends_of(4, killed, tmp_path / f"kill-{kill}")
        assert ends[rank] == -signal.SIGKILL, (tmp_path / f"kill-{kill}" / f"stdout-{rank}").read_text()
        after = newest_checkpoint(broken)
        first = 0 if before is None else step_of(before)
        now = 0 if after is None else step_of(after)
        print(
            f"kill {kill}: process {rank}, {delay:.2f} s of {longest:.2f} s into the save of step {first + number}; "
            f"complete: step {now}"
        )
        assert now in (first + number - 1, first + number), "what was whole before stays so"

    def resumed() -> None:
        allow_fsdp_on_cpu()
        warnings.simplefilter("ignore")
        print(run(CASE, models, broken, **TRAINING))

    (tmp_path / "resumed").mkdir()
    for said in in_processes(4, resumed, tmp_path / "resumed"):
        assert said.splitlines()[-1] == "trained", said
    assert losses(broken) == losses(whole)
    assert len(losses(whole)) == STEPS
    expected, found = tensors_of(whole), tensors_of(broken)
    assert found.keys() == expected.keys()
    worst = max(float((found[name] - weight).abs().max()) for name, weight in expected.items())
    print(
        f"{KILLS} kills, then resumed to step {STEPS}: the largest difference from the uninterrupted run is {worst:g}"
    )
    assert worst <= 1e-6

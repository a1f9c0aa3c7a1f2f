"""Steps that are captured. An engine of its own: a process has one at a time."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
from torch.utils._python_dispatch import _disable_current_modes

import setblock
from in_vllm.engines import ask, offline, problems
from in_vllm.steps import Steps, counted
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockWarning
from setblock_vllm import model_state
from slot_engine import generated


def test_captured_steps_run_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape stands for the CUDA graphs. What it replays is one launch each, and isn't counted."""

    class Launched(Tape):
        def replay(self) -> None:
            with _disable_current_modes():
                super().replay()

        def capture(self, run: Any) -> Any:
            with _disable_current_modes():
                return super().capture(run)

    monkeypatch.setattr(model_state, "CudaGraph", Launched)
    monkeypatch.setattr(model_state, "captures_steps", lambda vllm_config: True)
    settings = {
        "exact": DecodingSettings(method="exact"),
        "sbd": DecodingSettings(method="sbd", sampler=EntropyPrefix(0.03)),
    }
    model, questions = setblock.load(), [problem.question for problem in problems(4)]
    engine = offline(max_num_batched_tokens=256)
    try:
        for method, each in settings.items():
            expected = [
                generated(
                    model, encode_prompt(model.tokenizer, question, raw=False), replace(each, max_new_tokens=256)
                )[0]
                for question in questions
            ]
            steps = Steps()
            extra = {"method": method} | ({"gamma": 0.03} if method == "sbd" else {})
            with as_on_an_accelerator(), warnings.catch_warnings():
                warnings.simplefilter("error", SetBlockWarning)  # no capture is given up
                captured = ask(engine, questions, [extra] * 4)
                with counted(steps):
                    replayed = ask(engine, questions, [extra] * 4)
            assert [list(answer.token_ids) for answer in captured] == expected
            assert [list(answer.token_ids) for answer in replayed] == expected
            assert steps.most("step", "operations") <= 25
            assert steps.most("step", "lists") == 0
            assert steps.waits == []
    finally:
        engine.llm_engine.engine_core.shutdown()

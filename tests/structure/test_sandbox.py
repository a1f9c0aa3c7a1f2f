"""The process in which forms are tried: what would end or fill this one, it refuses, and nothing of it stays."""

import gc
import os
import signal

import pytest
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

from setblock.errors import ParameterError
from setblock.structure import Choice, Grammar, JsonObject, JsonSchema, Regex
from setblock.structure.compiled import Grammars
from setblock.structure.kinds import structure_of
from setblock.structure.sandbox import Sandbox
from structure.bombs import BOMBS
from structure.schemas import SCHEMAS


@pytest.fixture(scope="module")
def grammars(trained_tokenizer: PreTrainedTokenizerBase) -> Grammars:
    return Grammars(trained_tokenizer)


@pytest.mark.parametrize("name", BOMBS)
def test_a_form_beyond_the_limits_is_refused_and_leaves_nothing(name: str, grammars: Grammars) -> None:
    (word, value), said = BOMBS[name]
    form = structure_of({word: value})
    before = grammars._recent.cache_info().currsize
    with pytest.raises(ParameterError, match=said) as caught:
        grammars.matcher(form)
    assert "\n" not in str(caught.value)
    assert grammars._recent.cache_info().currsize == before
    assert grammars.known(form) is None


def test_the_usual_forms_pass(grammars: Grammars) -> None:
    forms = [JsonObject(), Regex("[0-9]{1,3}"), Choice(["yes", "n\n\u00f6"]), Grammar('start: "a" | "b"')]
    for form in (*forms, *map(JsonSchema, SCHEMAS.values())):
        assert grammars.matcher(form).is_accepting() is False
        assert grammars.known(form) is not None


def test_what_is_held_is_compiled_once(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    held = grammars.compiled(Regex("held"))
    grammars._recent.cache_clear()
    monkeypatch.setattr(Sandbox, "fault", lambda *_: pytest.fail("it was tried again"))
    assert grammars.compiled(Regex("held")) is held
    del held
    grammars._recent.cache_clear()
    gc.collect()
    assert grammars.known(Regex("held")) is None


def test_a_process_that_was_killed_is_replaced(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sandbox = Grammars(trained_tokenizer)._sandbox
    assert sandbox.fault(Regex("a")) is None
    assert sandbox._process is not None
    first = sandbox._process.pid
    os.kill(first, signal.SIGKILL)
    sandbox._process.wait()
    assert sandbox.fault(Regex("(a")) is not None
    assert sandbox._process.pid != first


def test_its_process_ends_with_it(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    grammars = Grammars(trained_tokenizer)
    grammars.matcher(Regex("a"))
    process = grammars._sandbox._process
    assert process is not None
    assert process.poll() is None
    del grammars
    gc.collect()
    assert process.poll() is not None

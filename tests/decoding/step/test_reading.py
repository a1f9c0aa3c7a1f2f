"""Which kernel reads the logits of a model, and that it is tried before it is used."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from other_noise import of_other_noise
from setblock.decoding.step import reading
from setblock.decoding.step.certainty import Certainty
from setblock.decoding.step.logits import MostLikely, Reading
from setblock.decoding.step.reading import fault_of, kernel_for, read_by_operations
from setblock.errors import SetBlockWarning

CPU = torch.device("cpu")


def changed(**fields: Any) -> Any:
    """A kernel whose result has other fields."""

    def kernel(*given: Tensor) -> Reading:
        found = read_by_operations(*given)
        return found._replace(**{name: change(found) for name, change in fields.items()})

    return kernel


def test_a_kernel_that_gives_the_same_has_no_fault() -> None:
    assert fault_of(read_by_operations, CPU) is None


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        (of_other_noise, "other tokens are drawn"),
        (changed(best=lambda found: MostLikely(found.best.logits.nan_to_num(), found.best.token_ids)), "other logits"),
        (changed(best=lambda found: found.best._replace(token_ids=found.best.token_ids + 1)), "the most likely"),
        (changed(certainty=lambda found: Certainty(*(1.01 * each for each in found.certainty))), "the entropies"),
    ],
    ids=["noise", "finite", "best", "certainty"],
)
def test_what_differs_is_named(kernel: Any, fault: str) -> None:
    assert fault in str(fault_of(kernel, CPU))


def test_a_model_has_a_kernel_once_it_is_captured(
    monkeypatch: pytest.MonkeyPatch, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    monkeypatch.setattr(reading, "_kernel_on", lambda device: read_by_operations)
    assert kernel_for(sbd) is None
    monkeypatch.setattr(sbd, "cuda_graphs", True)
    assert kernel_for(sbd) is read_by_operations


@pytest.mark.parametrize("error", [RuntimeError("no C compiler\nwas found"), ImportError("no driver")])
def test_a_kernel_that_cannot_run_is_left_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def failing(*_: Any) -> str:
        raise error

    monkeypatch.setattr(reading, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "setblock.decoding.step.reading_kernel", SimpleNamespace(read_by_kernel=None))
    monkeypatch.setattr(reading, "fault_of", failing)
    with pytest.warns(SetBlockWarning, match=f"by PyTorch's operations.*: {str(error).splitlines()[0]}$"):
        assert reading._kernel_on(torch.device("meta")) is None
    reading._kernel_on.cache_clear()

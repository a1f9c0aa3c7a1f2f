"""What decoding asks of a device: of one of several GPUs, and of types that not all devices have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedTokenizerBase

import setblock
from families import tiny_sbd
from measuring.static_batch import static_batch
from measuring.synchronisations import as_on_an_accelerator
from setblock import devices
from setblock.decoding.settings.table import DecodingSettings
from setblock.devices import HostCopy, packed
from setblock.errors import SetBlockError
from setblock.integrations.transformers import generate as generate_as_transformers

METHODS = ("exact", "sbd", "ntp")


class Types(TorchDispatchMode):
    """Collects the types of all that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.found |= {each.dtype for each in torch.utils._pytree.tree_leaves(made) if isinstance(each, torch.Tensor)}
        return made


def test_nothing_is_computed_in_float64(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [
        DecodingSettings(method=method, max_new_tokens=9, temperature=0.8, logprobs=2, min_p=0.01) for method in METHODS
    ]
    with as_on_an_accelerator(), Types() as types:
        batch = static_batch(sbd, prompts, settings)  # type: ignore[arg-type]
        for step in batch.steps():
            batch.new_texts(batch.outputs(step))
    assert batch.generation(0).num_tokens
    assert torch.float32 in types.found
    assert torch.float64 not in types.found


def test_a_copy_for_the_host_keeps_each_number() -> None:
    numbers = torch.tensor([[0.1, -0.0, torch.inf], [torch.nan, 1e-42, -3.4e38]])
    places = torch.tensor([[-(2**62)], [2**62]])
    found = HostCopy(packed(places, numbers, places > 0)).read()
    assert [row for table in (found[0], found[2]) for row in table] == [[-(2**62)], [2**62], [0], [1]]
    assert torch.equal(torch.tensor(found[1]).nan_to_num(7), numbers.nan_to_num(7))
    assert str(found[1][0][1]) == "-0.0"
    assert HostCopy(packed(numbers[:1, :1])).read() == [[[numbers[0, 0].item()]]]


def test_a_pass_runs_on_the_models_own_device(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several GPUs, one is PyTorch's current one. Events belong to a device and are recorded on the current one."""
    guard = devices.current(torch.device("cuda:1"))
    assert isinstance(guard, torch.cuda.device)
    assert guard.idx == 1
    inside: list[torch.device] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield
        inside.pop()

    monkeypatch.setattr(devices, "current", current)
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    calls: list[list[torch.device]] = []
    sbd.model.register_forward_pre_hook(lambda *_: calls.append([*inside]))
    batch = static_batch(sbd, prompts[:1], [DecodingSettings(method="exact", max_new_tokens=5)])
    for step in batch.steps():
        batch.outputs(step)
    assert calls
    assert all(each == [sbd.device] for each in calls)


def test_a_device_that_was_never_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"^device must be cpu or cuda \(cuda:1, ...\), not 'mps'"
    with pytest.raises(SetBlockError, match=said):
        setblock.load(device="mps")
    sbd = setblock.load()
    monkeypatch.setattr(type(sbd.model), "device", torch.device("mps"))
    with pytest.raises(SetBlockError, match=said):
        generate_as_transformers(torch.tensor([[5, 6]]), model=sbd.model, max_new_tokens=2, pad_token_id=0)

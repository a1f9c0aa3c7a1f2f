"""A delta that is trained as it is stored: training sees what is read back, and makes up for the rounding."""

import copy

import torch
from torch import nn

from deltas.packing import Form, packed_delta
from deltas.trained import TrainedChange, hold_changes
from setblock.model.loading.delta import with_delta

FORM, FORMS, ROWS = Form(4, bits=3), {"embed": Form(2, bits=8)}, {"embed.weight": [3]}


class Tied(nn.Module):
    """A model whose head is its embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(40, 16), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.inner(self.embed(tokens))))
        return logits


def tuned_model() -> tuple[Tied, dict[str, torch.Tensor]]:
    """Return a model, and the weights that it is said to have started from."""
    torch.manual_seed(0)
    model = Tied()
    start = {name: weight.detach() + 0.1 * torch.randn_like(weight) for name, weight in model.named_parameters()}
    return model, start


def stored(model: nn.Module, start: dict[str, torch.Tensor], changes: dict[str, TrainedChange]) -> Tied:
    """Return the model as it is read back from what is stored."""
    packed = {name: each.detach() for name, each in model.named_parameters() if name in start}
    for name, change in changes.items():
        packed |= change.packed(name)
    again = Tied()
    again.load_state_dict(with_delta(start, packed) | {"head.weight": with_delta(start, packed)["embed.weight"]})
    return again


def test_it_begins_as_the_rounded_delta_and_what_it_computes_is_what_is_stored() -> None:
    model, start = tuned_model()
    tuned = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    changes = hold_changes(model, start, form=FORM, forms=FORMS, rows=ROWS)
    assert list(changes) == ["embed.weight", "inner.weight"]
    expected = with_delta(start, packed_delta(start, tuned, form=FORM, forms=FORMS, rows=ROWS))
    tokens = torch.arange(40)
    torch.testing.assert_close(model.inner.weight, expected["inner.weight"])
    torch.testing.assert_close(model.head.weight, expected["embed.weight"], atol=2e-3, rtol=1e-2)  # a row in bfloat16
    torch.testing.assert_close(stored(model, start, changes)(tokens), model(tokens), atol=2e-2, rtol=1e-2)


def test_it_goes_on_from_what_is_stored_to_the_bit() -> None:
    """The nearest change to rounded factors has other factors, which another rounding would harm."""
    model, start = tuned_model()
    first = hold_changes(model, start, form=FORM, forms=FORMS, rows=ROWS)
    with torch.no_grad():  # as after training: not what the nearest change would give
        model.norm.weight += 0.5
        for change in first.values():
            change.up += 0.3 * torch.randn_like(change.up)
            change.up_steps += 0.2
    packed = {name: weight.detach() for name, weight in model.named_parameters() if name in start}
    for name, change in first.items():
        packed |= change.packed(name)
    other = Tied()
    again = hold_changes(other, start, form=FORM, forms=FORMS, rows=ROWS, stored=packed)
    for name, change in again.items():
        for key, value in change.packed(name).items():
            torch.testing.assert_close(value, packed[key], rtol=1e-6, atol=0)
        torch.testing.assert_close(
            change(start[name]), first[name](start[name]), rtol=1e-2, atol=1e-2
        )  # a row in bfloat16
    torch.testing.assert_close(other(torch.arange(40)), model(torch.arange(40)), rtol=1e-2, atol=2e-2)


def test_training_it_makes_up_for_the_rounding() -> None:
    """The model's own outputs are the aim; the base's weights and the bytes stay."""
    model, start = tuned_model()
    tokens = torch.arange(40)
    aim = copy.deepcopy(model)(tokens).detach()
    changes = hold_changes(model, start, form=FORM, forms=FORMS, rows=ROWS)

    @torch.no_grad()
    def error() -> float:
        return float((stored(model, start, changes)(tokens) - aim).square().mean())

    before = error()
    trained = [each for each in model.parameters() if each.requires_grad]
    assert len(trained) == len(set(trained)) == 2 * 5 + 3  # a change has five; a bias, a norm's two
    optimiser = torch.optim.Adam(trained, lr=3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        (model(tokens) - aim).square().mean().backward()
        optimiser.step()
    assert error() < 0.5 * before
    original = model.inner.parametrizations["weight"].original  # type: ignore[index, union-attr]
    assert torch.equal(original, start["inner.weight"])

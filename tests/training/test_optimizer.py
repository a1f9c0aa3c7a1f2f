"""`MuonAdamW`: two optimizers that behave as one."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import LambdaLR

from families import tiny_model
from setblock.training.trainer.optimizer import MuonAdamW

BETAS, EPS = (0.9, 0.95), 1e-8


def made(model: nn.Module, lr: float = 1e-2) -> MuonAdamW:
    both = {"learning_rate": lr, "weight_decay": 0.1}
    return MuonAdamW(model, SimpleNamespace(**both, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS))


def step(model: nn.Module, optimizer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_inside_the_model_get_muon_and_the_rest_adamw(tied: bool) -> None:
    model = tiny_model("llama", vocab_size=50, tie_word_embeddings=tied)
    twin = copy.deepcopy(model)
    step(model, made(model), 0)

    names = {
        name for name, p in twin.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name
    }
    assert len(names) == 2 * 7
    inside = [p for name, p in twin.named_parameters() if name in names]
    others = [p for name, p in twin.named_parameters() if name not in names]
    generator = torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    Muon(inside, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
    for weight_decay, part in ((0.1, [p for p in others if p.ndim > 1]), (0.0, [p for p in others if p.ndim == 1])):
        AdamW(part, lr=1e-2, weight_decay=weight_decay, betas=BETAS, eps=EPS).step()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_state_dict_round_trip() -> None:
    """Stopped after two steps and gone on from what was saved: the same weights as without the stop."""
    model = tiny_model("llama", vocab_size=50)
    optimizer = made(model)
    for seed in range(2):
        step(model, optimizer, seed)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for seed in range(2, 4):
        step(model, optimizer, seed)

    resumed = tiny_model("llama", vocab_size=50, seed=1)
    resumed.load_state_dict(weights)
    again = made(resumed)
    again.load_state_dict(state)
    for seed in range(2, 4):
        step(resumed, again, seed)
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("reload", [False, True])
def test_a_scheduler_reaches_all_parts(reload: bool) -> None:
    """Also after a state was loaded: at a rate of 0 nothing moves."""
    model = tiny_model("llama", vocab_size=50)
    optimizer = made(model)
    step(model, optimizer, 0)
    if reload:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    scheduler = LambdaLR(optimizer, lambda n: float(n == 0))
    step(model, optimizer, 1)
    scheduler.step()
    assert all(group["lr"] == 0 for group in optimizer.param_groups)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer, 2)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_frozen_parameters_stay() -> None:
    model = tiny_model("llama", vocab_size=50)
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    step(model, made(model), 0)
    moved = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved == {name for name, p in model.named_parameters() if p.requires_grad} | {"lm_head.weight"} & moved

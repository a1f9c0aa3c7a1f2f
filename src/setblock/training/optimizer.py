"""Optimise by Muon and AdamW (`MuonAdamW`): Muon for the matrices inside the model, AdamW for everything else.

Knows parameters. Written because `torch.optim.Muon` takes matrices only, and a scheduler and a checkpoint want one optimizer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer


class MuonAdamW(Optimizer):
    """Combine two optimizers behind one interface, with one learning rate for both.

    Muon (Jordan et al., 2024) orthogonalises the momentum of each weight matrix; its steps are scaled to AdamW's size
    (Moonshot AI, arXiv 2502.16982), which is what lets both share a rate. Embeddings, head, norms and biases get AdamW.

    Args:
        model: its trainable parameters are optimised.
        lr, weight_decay: of both.
        betas, eps: of AdamW.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float
    ) -> None:
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        tables |= {id(head.weight)} if head is not None else set()
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in tables]
        inside = {id(p) for p in matrices}
        others = [p for p in trained if id(p) not in inside]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
        if others:
            self._parts.append(AdamW(others, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps))
        super().__init__([{"params": p} for part in self._parts for p in part.param_groups[0]["params"]], {})
        # The very dicts of the parts, so that a scheduler's new rate reaches them.
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Run one step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self._parts for group in part.param_groups]

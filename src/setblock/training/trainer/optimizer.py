"""The optimizer `MuonAdamW`: Muon for the matrices inside the model, AdamW for everything else.

`torch.optim.Muon` takes matrices only, while a scheduler and a checkpoint want one optimizer.
"""

from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import TrainingArguments


class MuonAdamW(Optimizer):
    """Two optimizers behind one interface, with one learning rate for both. Norms and biases do not decay, as with the
    Trainer's own AdamW.

    Muon (Jordan et al., 2024) orthogonalises the momentum of each weight matrix; its steps are scaled to AdamW's size
    (Moonshot AI, arXiv 2502.16982), so that both can share a rate. Embeddings, head, norms and biases get AdamW. The
    trainable parameters of `model` are optimised; `args` has the rate and the weight decay of both, and AdamW's other
    settings.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments) -> None:
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        tables |= {id(head.weight)} if head is not None else set()
        trained = [p for p in model.parameters() if p.requires_grad]
        # A single row, such as an adapter's of the mask token, has nothing to be made orthogonal to.
        matrices = [p for p in trained if p.ndim == 2 and len(p) > 1 and id(p) not in tables]
        inside = {id(p) for p in matrices}
        others = [p for p in trained if id(p) not in inside]
        lr, decay, betas = args.learning_rate, args.weight_decay, (args.adam_beta1, args.adam_beta2)
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
        vectors = [p for p in others if p.ndim < 2]
        for part, own in (([p for p in others if p.ndim >= 2], decay), (vectors, 0.0)):
            if part:
                self._parts.append(AdamW(part, lr=lr, weight_decay=own, betas=betas, eps=args.adam_epsilon))
        self.least_rows = min(map(len, matrices), default=None)  # of a matrix; None where there is none
        super().__init__([{"params": p} for part in self._parts for p in part.param_groups[0]["params"]], {})
        # The parts' own dicts, not copies, so that a scheduler's new rate reaches them.
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        self._share()

    def _share(self) -> None:
        """Give each part its group and the states of all, so that code that saves, loads or shards an optimizer sees a
        plain one."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Run one step of both."""
        assert closure is None, "no closure: the Trainer has computed the gradients"
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._share()

"""Count how many operations a pass runs outside the model, and in it: on a GPU each is a kernel that the host launches.

Knows PyTorch's operations. Counts them on any device. What only looks at a tensor otherwise (a view), or only takes memory, is
not counted.
"""

from collections import Counter
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from measuring.synchronisations import asker

_ONLY_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "_unsafe_view"}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """Count operations outside a model's forward pass while active, by the function of this project that asked for
    them.

    Attributes:
        counts: `file function` -> times.
        in_model: how many ran in the model's forward pass.
        passes: how many of these there were.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.in_model = self.passes = 0
        self._model, self._is_inside = model, False

    @property
    def total(self) -> int:
        """Return all that ran outside the model."""
        return sum(self.counts.values())

    def __enter__(self) -> "Operations":
        """Begin to count."""

        def enter(*_: Any) -> None:
            self._is_inside, self.passes = True, self.passes + 1

        def leave(*_: Any) -> None:
            self._is_inside = False

        self._hooks = [self._model.register_forward_pre_hook(enter), self._model.register_forward_hook(leave)]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        if not func.is_view and func.overloadpacket.__name__ not in _ONLY_MEMORY:
            if self._is_inside:
                self.in_model += 1
            else:
                where, function = asker().split(":")[0], asker().split()[-1]
                self.counts[f"{where} {function}"] += 1
        return func(*args, **(kwargs or {}))

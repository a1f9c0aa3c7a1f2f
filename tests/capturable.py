"""What a CUDA graph could not capture, found on a CPU."""

from typing import Any

from measuring.synchronisations import Synchronisations, asker

_COPIES = {"lift_fresh"}  # of `torch.tensor`: the host's numbers go to the device
_SHAPES = {"unique_consecutive", "_unique2", "unique_dim", "bincount"}  # by values


class Uncapturable(Synchronisations):
    """Count the operations that fail in a capture, or that a replay would not do: host reads, shapes that depend on values, and
    host numbers that become tensors of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        repeats = name == "repeat_interleave" and func._overloadname == "Tensor"
        if name in _COPIES or name in _SHAPES or repeats:
            self.counts[f"{asker()}: {name}"] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)

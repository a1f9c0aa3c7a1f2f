"""Two processes, each with half of every weight and half of the rows, against one process with all. For test_distributed.py."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

from families import tiny_model
from setblock.data.packing import RowCollator, RowDataset, pack
from setblock.training.forward import training_loss
from setblock.training.head import split_head
from setblock.training.inputs import TrainingInputs
from training.doubling import END, documents_of, doubled

VOCABULARY, STEPS, RATE = 60, 3, 0.05


def inputs_of(step: int, rows: list[int]) -> TrainingInputs:
    dataset = RowDataset(pack(documents_of((13, 9, 14, 17, 16, 12)), row_length=30, pad_token_id=END))
    return doubled(RowCollator(pad_token_id=END)([dataset[row] for row in rows]), seed=(0, step))


def train(model: PreTrainedModel, rows: list[int], *, processes: int, logits_at_once: int) -> list[float]:
    """The sums of the loss over `rows`; the gradients of `processes` are averaged by what wraps the model."""
    head = split_head(model)
    if processes > 1:
        mesh = init_device_mesh("cpu", (processes,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = training_loss(
            model, inputs_of(step, rows), head=head, ntp_weight=0.5, matp_weight=2.0, logits_at_once=logits_at_once
        )
        (loss.total * processes / 50).backward()
        optimizer.step()
        losses.append(float(loss.total.detach()))
    return losses


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def main() -> None:
    dist.init_process_group("gloo")
    for tied in (False, True):
        alone, shared = (
            tiny_model("llama", vocab_size=VOCABULARY, tie_word_embeddings=tied, initializer_range=0.2)
            for _ in range(2)
        )
        expected = train(alone, [0, 1], processes=1, logits_at_once=1 << 30)
        ours = train(shared, [dist.get_rank()], processes=2, logits_at_once=7 * VOCABULARY)
        losses = torch.tensor(ours)
        dist.all_reduce(losses)
        torch.testing.assert_close(losses, torch.tensor(expected), rtol=1e-4, atol=1e-4)
        state, expected_state = whole_state(shared), alone.state_dict()
        start = tiny_model("llama", vocab_size=VOCABULARY, tie_word_embeddings=tied, initializer_range=0.2).state_dict()
        for name, weight in expected_state.items():
            assert not torch.equal(weight, start[name]), f"{name} was not trained"
            torch.testing.assert_close(state[name], weight, rtol=1e-4, atol=1e-5, msg=name)
    if dist.get_rank() == 0:
        print("same")
    dist.destroy_process_group()

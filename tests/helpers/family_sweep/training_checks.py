"""What is checked of training: the loss of packed rows, a few steps, and an adapter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from family_sweep.answers import decoded, settings
from family_sweep.cases import CONTEXT
from family_sweep.outcome import WrongError
from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.model.attention.attention import plan_of
from setblock.model.attention.document_attention import document_attention
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection, add_adapter
from setblock.training.inputs.cut_rows import cut_inputs
from setblock.training.inputs.doubled import doubled_inputs, noisy_halves, ntp_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits, training_loss


def check_training(sbd: SBDModel, prompts: Sequence[list[int]]) -> None:
    """The next-token loss of packed rows is Transformers' own, and three steps change the model."""
    keeps_state = plan_of(sbd.model).keeps_state
    prepared = sbd.prepare_for_training(block_sizes=[4, 16], logit_shift=False, causal_block=keeps_state)
    mask = prepared.mask_token_id
    assert mask is not None
    documents = [Document(prompt, [True] * len(prompt)) for prompt in prompts if len(prompt) > 1]
    rows = RowDataset(pack(documents, row_length=max(map(len, prompts)) + 12, pad_token_id=0))
    batch = as_batch([rows[number] for number in range(len(rows))], pad_token_id=0)
    inputs = cut_inputs(batch, [], copies=1, logit_shift=False, seed=(0,)) if keeps_state else ntp_inputs(batch)
    with torch.no_grad():
        logits = training_logits(sbd.model, inputs, inputs.ntp.index)
        found = float(torch.nn.functional.cross_entropy(logits.float(), inputs.ntp.token_ids, reduction="sum"))
        wanted = 0.0
        for document in documents:
            ids = torch.tensor([list(document.token_ids)])
            own = sbd.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            wanted += float(torch.nn.functional.cross_entropy(own, ids[0, 1:], reduction="sum"))
    if abs(found - wanted) > 1e-3 * wanted:
        raise WrongError(f"training: a next-token sum of {found:.2f}, not {wanted:.2f}")
    before = {name: weight.detach().clone() for name, weight in sbd.model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in sbd.model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(3):
        noise: dict[str, Any] = {
            "block_size": 4,
            "noising": Noising(),
            "noise_ids": range(mask, mask + 1),
            "end_of_text_id": 0,
            "context_length": sbd.context_length or CONTEXT,
            "seed": (0, step),
        }
        if keeps_state:
            doubled = cut_inputs(batch, noisy_halves(batch, **noise), copies=1, logit_shift=False, seed=(0, step))
        else:
            doubled = doubled_inputs(batch, logit_shift=False, **noise)
        with document_attention(sbd.model):
            loss = training_loss(sbd.model, doubled, head=None, ntp_weight=1.0, matp_weight=1.0)
            total = loss.total / loss.ntp_count
            if not bool(total.isfinite()):
                raise WrongError("training: a loss that is no number")
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(sbd.model.parameters(), 1.0)
        optimizer.step()
    if all(torch.equal(before[name], weight) for name, weight in sbd.model.named_parameters()):
        raise WrongError("training: three steps change nothing")


def check_adapter(folder: Path, prompts: Sequence[list[int]], new: int) -> None:
    """An adapter on the future block alone leaves next-token decoding what it is."""
    sbd = load(folder)
    sbd.prepare_for_training(block_sizes=[4], logit_shift=False, causal_block=plan_of(sbd.model).keeps_state)
    wanted = decoded(sbd, prompts[:2], settings("ntp", new))
    add_adapter(sbd, AdapterSection(only_noisy=True))
    with torch.no_grad():
        for name, weight in sbd.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    gated = SBDModel(sbd.model, sbd.tokenizer, sbd_config=sbd.sbd_config)
    for method in ("ntp", "exact"):
        if decoded(gated, prompts[:2], settings(method, new, 4)) != wanted:
            raise WrongError(f"adapter: {method} is not what it is without")

"""Check on a machine, before its times mean anything, that fast paths compute what the plain ones do.

Each check returns what it found, with `passed`. On a CPU they run as well, without compiling anything.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import setblock
import training_step
from measuring.contenders import ours, transformers
from measuring.static_batch import static_batch
from measuring.subjects import SIZES, PassKind, compiled, passes, random_model, random_prompt
from setblock.decoding.settings.table import METHODS, DecodingSettings
from setblock.model.sbd_model import SBDModel
from setblock.training.loss.forward import training_loss

# Weights that are neither tied nor small: a random model whose outputs are all but certain would pass anything.
_LIVELY = {"tie_word_embeddings": False, "initializer_range": 0.06}
_KINDS: tuple[PassKind, ...] = ("one token", "block", "fused")


def lively_model(size: str, dtype: torch.dtype) -> SBDModel:
    """Return a random model whose distributions differ from position to position."""
    return random_model(SIZES[size] | _LIVELY, dtype=dtype)


def flex_is_dense(size: str, dtype: torch.dtype, *, row_length: int) -> dict[str, Any]:
    """Compare FlexAttention's loss and gradients of SBD steps with SDPA's with a dense mask: packed documents, three
    block sizes."""
    losses: list[list[float]] = []
    gradients: list[Tensor] = []
    for attention in ("sdpa", "flex_attention"):
        arguments = ["--size", size, "--rows", "2", "--row-length", str(row_length), "--attention", attention]
        options = training_step.parse_options([*arguments, "--document-length", str(row_length // 4)])
        model = training_step.random(options).model.to(dtype).train()
        rows = training_step.packed_rows(0.25, options)
        losses.append([])
        for step in range(len(options.block_sizes)):
            inputs = training_step.inputs_of("sbd", rows, step, options).to(model.device)
            with torch.set_grad_enabled(torch.cuda.is_available()):  # FlexAttention has no backward pass on CPUs
                loss = training_loss(model, inputs, head=None, ntp_weight=1.0, matp_weight=1.0)
            losses[-1].append(float(loss.total))
            if loss.total.requires_grad:
                torch.autograd.backward(loss.total / loss.ntp_count)
        graded = [p.grad.flatten().float() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(graded) if graded else torch.ones(1))
    off = {
        "losses_differ_by": max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True)),
        "gradients_differ_by": difference(*gradients),
    }
    limit = 1e-4 if dtype == torch.float32 else 0.05
    return off | {"backward": bool(graded), "limit": limit, "passed": max(off.values()) < limit}


def exact_is_plain(size: str, dtype: torch.dtype, *, tokens: int) -> dict[str, Any]:
    """Compare method `exact` with plain decoding and Transformers' greedy `generate`: of a random model, whose drafts are
    wrong, and of the bundled one, whose drafts are right. Where two differ, by how much the logits of the two tokens do."""
    found: dict[str, Any] = {}
    for model, sbd in (("random", lively_model(size, dtype)), ("bundled", setblock.load(dtype=dtype))):
        plain = DecodingSettings(method="ntp", max_new_tokens=tokens)
        reference = transformers("Transformers", sbd.model, max_new_tokens=tokens)
        for length in (5, 17, 40):
            prompt = random_prompt(sbd, length)
            expected = reference.decode(prompt).token_ids
            for settings in (plain, replace(plain, method="exact", block_size=16)):
                answer = ours(settings.method, sbd, settings).decode(prompt).token_ids
                row = found.setdefault(
                    f"{settings.method}, {model}", {"answers": 0, "identical": 0, "largest_gap": 0.0}
                )
                row["answers"] += 1
                row["identical"] += answer == expected
                row["largest_gap"] = max(row["largest_gap"], _gap(sbd, prompt, expected, answer))
    limit = 0.0 if dtype == torch.float32 else 0.05
    return {"methods": found, "limit": limit, "passed": all(row["largest_gap"] <= limit for row in found.values())}


def _gap(sbd: SBDModel, prompt: list[int], expected: list[int], answer: list[int]) -> float:
    """Return by how much the logits of two answers' tokens differ where the answers first do, over the spread of the
    logits there."""
    if answer == expected:
        return 0.0
    if len(answer) != len(expected):
        return float("inf")
    place = next(i for i, (a, b) in enumerate(zip(answer, expected, strict=True)) if a != b)
    ids = torch.tensor([prompt + expected[:place]], device=sbd.device)
    with torch.inference_mode():
        logits = sbd.model(ids).logits[0, -1].float()
    return float((logits[expected[place]] - logits[answer[place]]).abs() / (logits.max() - logits.mean()))


def compiled_is_eager(size: str, dtype: torch.dtype, *, backend: str) -> dict[str, Any]:
    """Compare logits of each kind of pass of the compiled model with those of the model as it is."""
    sbd = lively_model(size, dtype)
    fast = compiled(sbd, backend=backend)
    differences = {}
    for kind in _KINDS:
        both = [passes(each, kind, block_size=16, kv_length=100, batch=2)["model"]() for each in (sbd, fast)]
        differences[kind] = difference(*both)
    limit = 1e-4 if dtype == torch.float32 else 0.05
    return {"logits_differ_by": differences, "limit": limit, "passed": max(differences.values()) < limit}


def rows_are_alone(size: str, *, tokens: int) -> dict[str, Any]:
    """Compare requests of one batch, of all methods and several lengths, with each alone; float32."""
    sbd = lively_model(size, torch.float32)
    settings = [
        DecodingSettings(method=method, block_size=8, max_new_tokens=tokens) for method in METHODS for _ in "ab"
    ]
    prompts = [random_prompt(sbd, 3 + 7 * i) for i in range(len(settings))]

    def answers(prompts: list[list[int]], settings: list[DecodingSettings]) -> list[list[int]]:
        batch = static_batch(sbd, prompts, settings)
        for _ in batch.steps():
            pass
        return [batch.state.answer_of(row).tolist() for row in range(len(prompts))]

    together = answers(prompts, settings)
    alone = [answers([prompt], [each])[0] for prompt, each in zip(prompts, settings, strict=True)]
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    return {"requests": len(settings), "identical": same, "passed": same == len(settings)}


def difference(a: Tensor, b: Tensor) -> float:
    """Return the relative difference of logits, without those of banned tokens."""
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite].float(), b[finite].float()
    return float((a - b).norm() / a.norm())

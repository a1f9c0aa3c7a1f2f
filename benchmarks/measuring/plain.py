"""Decode by the own loop of Transformers, and of llama-cpp-python: what ours must equal, and what its speed is compared with.

Knows nothing of blocks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from setblock.integrations.llama_cpp.model import LlamaModel


def stock_llama(path: str | Path, model: LlamaModel, **options: Any) -> Any:
    """Return llama-cpp-python's own object over a file, with the context length of `model` and PyTorch's number of
    threads."""
    import llama_cpp

    made: Callable[..., Any] = llama_cpp.Llama
    threads = torch.get_num_threads()
    return made(
        str(path), n_ctx=model.context_length, n_threads=threads, n_threads_batch=threads, verbose=False, **options
    )


def stock_answer(llama: Any, model: LlamaModel, prompt: list[int], *, max_new_tokens: int) -> list[int]:
    """Return the token ids of its greedy answer, end-of-text included. It keeps nothing of the request before."""
    llama.reset()
    written: list[int] = []
    for token_id in llama.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
        written.append(token_id)
        if token_id in model.end_of_text_ids or len(written) == max_new_tokens:
            break
    return written


def transformers_answer(
    model: PreTrainedModel, prompt: Sequence[int], *, max_new_tokens: int, **options: Any
) -> list[int]:
    """Return the token ids of the answer by Transformers' `generate`, end-of-text included. Greedy, unless its `options` say
    otherwise."""
    ids = torch.tensor([list(prompt)], device=model.device)
    how = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": max_new_tokens} | options
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    answer: list[int] = whole[0, len(prompt) :].tolist()
    return answer

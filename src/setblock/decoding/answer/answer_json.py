"""Convert an answer, and what a pass did to it, to the JSON objects that commands print and files of answers hold."""

from dataclasses import asdict
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.generation import Generation, Reveal
from setblock.decoding.generate import StreamChunk


def generation_json(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the JSON object of one answer."""
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "num_tokens": generation.num_tokens,
        "num_forwards": generation.num_forwards,
        "num_prefill_forwards": generation.passes.prefill,
        "num_block_forwards": generation.passes.block,
        "num_commit_forwards": generation.passes.commit,
        "num_drafted_tokens": generation.drafted,
        "num_accepted_tokens": generation.accepted,
        "tokens_per_forward": generation.tokens_per_forward,
        "seconds": generation.seconds,
        "method": generation.method,
        **({} if generation.error is None else {"error": generation.error.message}),
        **({} if generation.logprobs is None else {"logprobs": _logprobs_json(generation, tokenizer)}),
    }


def event_json(chunk: StreamChunk, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the JSON object of one forward pass."""

    def reveal(found: Reveal) -> dict[str, Any]:
        return {**asdict(found), "text": tokenizer.decode([found.token_id])}

    event = chunk.event
    return {
        "pass": event.number,
        "kind": event.kind,
        "revealed": [reveal(each) for each in event.revealed],
        "corrected": None if event.corrected is None else reveal(event.corrected),
        "text": chunk.text,
    }


def _logprobs_json(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    def token(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": token_id, "text": tokenizer.decode([token_id]), "logprob": logprob}

    assert generation.logprobs is not None
    return [
        {**token(token_id, found.logprob), "alternatives": [token(*each) for each in found.alternatives]}
        for token_id, found in zip(generation.token_ids, generation.logprobs, strict=True)
    ]

"""Convert an answer to the JSON object that commands print and files of answers hold."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.generation import Generation


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


def _logprobs_json(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    def token(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": token_id, "text": tokenizer.decode([token_id]), "logprob": logprob}

    assert generation.logprobs is not None
    return [
        {**token(token_id, found.logprob), "alternatives": [token(*each) for each in found.alternatives]}
        for token_id, found in zip(generation.token_ids, generation.logprobs, strict=True)
    ]

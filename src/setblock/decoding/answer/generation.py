"""Define what a user gets: a finished answer, as an object and as JSON, and what each pass did to it.

Knows plain numbers. Knows nothing of tensors, models or text.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FinishReason = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True)
class PassCounts:
    """Count the forward passes of one request, up to the end of its answer."""

    prefill: int  # passes over the prompt
    block: int  # passes over a block alone (over one token, in method `ntp`)
    # Passes that committed a block and, unless the runner commits in separate passes, were the first pass of the next one
    commit: int

    @property
    def total(self) -> int:
        """Return the count of all passes of the model."""
        return self.prefill + self.block + self.commit

    @property
    def with_one_prefill(self) -> int:
        """Return the count with one pass for the prompt, in however many parts it was fed, and if it was fed again."""
        return min(self.prefill, 1) + self.decoding

    @property
    def decoding(self) -> int:
        """Return the count without the prefill, as NFE speed-ups are counted, for both methods."""
        return self.block + self.commit


@dataclass(frozen=True)
class TokenLogprobs:
    """Hold how likely a token was when it was revealed (in method `exact`, when it was checked)."""

    logprob: float  # its log-probability, in nats: the model's own, before temperature, penalties and bans
    alternatives: list[tuple[int, float]]  # the most likely token ids with theirs, the most likely first


@dataclass(frozen=True)
class Failure:
    """Describe why an answer could not continue."""

    message: str  # one line
    is_of_form: bool  # whether nothing that may be chosen fits the form of the answer; otherwise the model is at fault


@dataclass(frozen=True)
class Generation:
    """Hold a finished answer.

    Attributes:
        text: the answer without special tokens, cut before a stop string.
        token_ids: its tokens, including the end-of-text, up to the token that completed a stop string.
        finish_reason: `stop` at an end-of-text or stop string, `length` at the limit, `error` if the model's logits were not
            numbers or left no token that may come next, `cancelled` if the request was cancelled.
        passes: forward passes by kind.
        drafted: in method `exact`, drafted tokens that were checked.
        accepted: those of them that were right. The others cost time and gave nothing.
        revealed_by: for each token, the number of the pass that revealed it. 0 is the prefill.
        entropy: for each token, its entropy in nats when it was revealed.
        logprobs: for each token, its log-probability, if requested.
        seconds: wall-clock time from the prompt to the end, of the whole batch or of a request to the engine.
        method: `sbd`, `exact` or `ntp`.
        error: why the answer ended with `error`, else None.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    passes: PassCounts
    revealed_by: list[int]
    entropy: list[float]
    logprobs: list[TokenLogprobs] | None
    seconds: float
    method: str
    error: Failure | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the number of generated tokens, including the end-of-text."""
        return len(self.token_ids)

    @property
    def num_forwards(self) -> int:
        """Return the number of forward passes of all kinds, including the prefill."""
        return self.passes.total

    @property
    def tokens_per_forward(self) -> float:
        """Return the tokens per forward pass, the prefill counted as one: exactly 1 for method `ntp`, 0 without any pass."""
        return self.num_tokens / max(1, self.passes.with_one_prefill)


Kind = Literal["prefill", "block", "commit"]


@dataclass(frozen=True)
class Reveal:
    """Describe a token that a pass revealed."""

    index: int  # its place in the answer, from 0
    token_id: int  # what it is
    entropy: float  # nats, of the distribution it was chosen from


def generation_json(generation: Generation, tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
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


def _logprobs_json(generation: Generation, tokenizer: "PreTrainedTokenizerBase") -> list[dict[str, Any]]:
    def token(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": token_id, "text": tokenizer.decode([token_id]), "logprob": logprob}

    assert generation.logprobs is not None
    return [
        {**token(token_id, found.logprob), "alternatives": [token(*each) for each in found.alternatives]}
        for token_id, found in zip(generation.token_ids, generation.logprobs, strict=True)
    ]

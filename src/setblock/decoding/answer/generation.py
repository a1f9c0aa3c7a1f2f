"""Results as plain Python data: a finished answer (`Generation`), also as JSON, and the tokens that a pass revealed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FinishReason = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True)
class PassCounts:
    """The numbers of forward passes of one request, up to the end of its answer."""

    prefill: int  # passes over the prompt
    block: int  # passes over a block alone (over one token, in method `ntp`)
    # Passes that committed a block and, unless the runner commits in separate passes, were the first pass of the next one
    commit: int

    @property
    def total(self) -> int:
        """The number of all passes."""
        return self.prefill + self.block + self.commit

    @property
    def with_one_prefill(self) -> int:
        """The number of passes with the prompt counted as one, even if it was fed in parts or again."""
        return min(self.prefill, 1) + self.decoding

    @property
    def decoding(self) -> int:
        """The number of passes without the prefill, which NFE speed-ups compare."""
        return self.block + self.commit


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a token when it was revealed (in method `exact`, when it was checked)."""

    logprob: float  # in nats: the model's own, before temperature, penalties and bans
    alternatives: list[tuple[int, float]]  # token ids with their log-probabilities, the most likely first


@dataclass(frozen=True)
class Failure:
    """The reason why an answer could not continue."""

    message: str  # one line
    is_of_form: bool  # whether no available token fits the form of the answer; otherwise the model is at fault


@dataclass(frozen=True)
class Generation:
    """A finished answer.

    Attributes:
        text: the answer without special tokens, cut before a stop string.
        token_ids: its tokens, including the end-of-text, up to the token that completed a stop string.
        finish_reason: `stop` at an end-of-text or stop string, `length` at the limit, `error` if the model's logits
            were not numbers or left no token that may come next, `cancelled` if the request was cancelled.
        passes: forward passes by kind.
        drafted: in method `exact`, drafted tokens that were checked.
        accepted: drafted tokens that were right.
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
        """The number of generated tokens, including the end-of-text."""
        return len(self.token_ids)

    @property
    def num_forwards(self) -> int:
        """The number of forward passes of all kinds, including the prefill."""
        return self.passes.total

    @property
    def tokens_per_forward(self) -> float:
        """The tokens per forward pass, with the prefill as one pass: exactly 1 for method `ntp`, 0 without any pass."""
        return self.num_tokens / max(1, self.passes.with_one_prefill)


Kind = Literal["prefill", "block", "commit"]


@dataclass(slots=True)  # not frozen, which takes four times as long to make
class Reveal:
    """A token that a pass revealed."""

    index: int  # its place in the answer, from 0
    token_id: int
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

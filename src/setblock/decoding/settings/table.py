"""The table of settings that a request may set, for the command line, the server and all other callers, and the
parameters of a request whose settings are resolved.

It doesn't import PyTorch, so that the command line can list the settings quickly.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, Protocol

from setblock.decoding.settings.setting import Range, Setting, answer, point, report, sampling, table_of
from setblock.errors import ParameterError, did_you_mean, warn

if TYPE_CHECKING:
    from setblock.decoding.constraints.constraint import TokenConstraint
    from setblock.decoding.samplers.base import Sampler
    from setblock.structure.kinds import Structure

Method = Literal["sbd", "exact", "ntp"]
METHODS: tuple[Method, ...] = ("sbd", "exact", "ntp")
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_TOKENS = 2**31 - 1  # more than any context holds, and no overflow when added


class ConstraintFactory(Protocol):
    """A factory of constraints, one for each answer of a request; an item of `DecodingSettings.constraints`."""

    def constraint(self, params: "RequestParams", *, vocab_size: int) -> "TokenConstraint":
        """Return a constraint for a new row. Raise `SetBlockError` if it can't be used with the model."""


@dataclass(frozen=True)
class DecodingSettings:
    """The settings of one request. Requests of one batch may differ in all of them."""

    # The operating point: what trades accuracy for passes
    method: Method = point(
        "exact",
        "exact: blocks of several tokens per forward pass, each checked when it is committed. The text is "
        "the same as plain decoding's. sbd: blocks without a check (Algorithm 3). Takes fewer passes, and "
        "the text may differ. ntp: plain decoding, one token per pass.",
    )
    sampler: "Sampler | None" = point(
        None, "The rule that decides which tokens a pass reveals. Default: the method's.", metavar="NAME"
    )
    block_size: int | None = point(
        None,
        "Tokens in a block, k. Default: the largest that the model was trained with, at most 16; 16 where exact mode copies "
        "drafts and decides how long they are.",
        Range(1, MAX_TOKENS, far=True),
        metavar="K",
        short="k",
    )
    prompt_lookup: int | None = point(
        None,
        "In method exact: also copy drafts from the text. If at least this many of the last tokens occurred "
        "before, the tokens after that occurrence fill the positions that the model is unsure of. 0 disables "
        "it. Default: 0 for models trained for blocks, or 2 with a draft text; 1 for untrained models, and if only an "
        "adapter was trained (2 with fixed drafts).",
        Range(0),
        short="lookup",
        only_in="exact",
    )

    drafts: Literal["adaptive", "fixed"] = answer(
        "adaptive",
        "In method exact: how long drafts are. adaptive: each pass decides it for each request, by what passes cost on this "
        "machine and how often drafts were right. They are at most as long as a block. fixed: as long as a block, so that a "
        "request always takes the same passes. The text is the same.",
    )

    # How its prompt is fed
    prefill_chunk: int | None = answer(
        None,
        "Maximum number of tokens of a prompt in one pass. A longer prompt is fed in several passes, which bounds the memory "
        "of a pass. Default: 512.",
        Range(1, MAX_TOKENS, far=True),
    )

    # Where an answer ends
    max_new_tokens: int | None = answer(
        None,
        "Maximum number of tokens to generate, including the end of text. Default: 256, or less if the "
        "context of the model ends before.",
        Range(1, MAX_TOKENS, far=True),
    )
    min_new_tokens: int = answer(
        0, "Minimum number of tokens before an end of text or a stop text.", Range(0, MAX_TOKENS, far=True)
    )
    stop: str | Sequence[str] = answer(
        (), "Texts that end the answer. The answer does not include them.", metavar="TEXT", most=MAX_STOP_STRINGS
    )
    stop_token_ids: Sequence[int] = answer(
        (), "Token ids that end the answer, in addition to the end of text.", metavar="ID"
    )

    # How tokens are drawn
    temperature: float = sampling(
        0.0,
        "Sampling temperature: divides the logits. 0 is greedy decoding.",
        Range(0, sys.float_info.max, words="a finite number of at least 0"),
        metavar="T",
    )
    top_k: int = sampling(
        0,
        "Draw from the k most likely tokens; 0 for all.",
        Range(0, MAX_TOKENS, far=True, words="at least 1, or 0 for all"),
        metavar="K",
    )
    top_p: float = sampling(
        1.0,
        "Draw from the most likely tokens that together have at least this probability.",
        Range(0, 1, above=True),
        metavar="P",
    )
    min_p: float = sampling(
        0.0,
        "Draw from tokens whose probability is at least this share of the largest probability.",
        Range(0, 1),
        metavar="P",
    )
    repetition_penalty: float = sampling(
        1.0,
        "Penalty for tokens that occur in the prompt or in the text so far: divides their positive logits "
        "and multiplies their negative ones. 1 is off.",
        Range(0.01, 100.0),
        metavar="R",
    )
    logit_bias: Mapping[int, float] = sampling(
        {},
        "Values to add to the logits of token ids.",
        Range(-1e9, 1e9),  # far beyond any logit, and far from where float32 ends
        metavar="ID=BIAS",
    )
    banned_tokens: Sequence[int] = sampling((), "Token ids that are never generated.", metavar="ID")
    seed: int = sampling(
        0,
        "Seed of the draws at a temperature above 0. The text of a request does not depend on the rest of its batch.",
        Range(-(2**63), 2**63 - 1, words="a number of 64 bits"),
        metavar="S",
    )

    # The form of the answer, and further constraints
    structure: "Structure | None" = answer(
        None,
        "The required form of the answer: a JSON schema (as a dictionary, a text or a pydantic model), or an "
        "object of a class of setblock.structure.",
    )
    constraints: "Sequence[ConstraintFactory]" = answer(
        (),
        "Objects that receive the tokens of the answer and can restrict what comes next, such as a grammar.",
        is_python=True,
    )

    # What is reported
    n: int = report(
        1,
        "Number of answers. Answer i, from 0, is the answer to the same request with seed + i. At "
        "temperature 0 they are copies of one another.",
        Range(1, 128),
    )
    logprobs: int | None = report(
        None,
        "Report the log-probability of each token, and this many of its most likely alternatives.",
        Range(0, MAX_LOGPROBS),
    )

    def __new__(cls, *_: Any, **named: Any) -> "DecodingSettings":
        """Raise `ParameterError` for a name that is not a setting's current or earlier name."""
        for name in named.keys() - SETTINGS.keys() - RENAMED.keys():
            raise ParameterError(
                f"{name} is no setting{did_you_mean(name, SETTINGS)}: parameters of a sampler, such as gamma, go to the "
                f"sampler, or by name to generate; settings are {', '.join(SETTINGS)}"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, row in SETTINGS.items():
            object.__setattr__(self, name, row.plain(getattr(self, name)))
        if self.sampler is not None and (
            isinstance(self.sampler, type) or not callable(getattr(self.sampler, "select", None))
        ):
            raise ParameterError(f"sampler must be a sampler such as EntropyPrefix(0.1), not {self.sampler!r}")
        if self.structure is not None:
            from setblock.structure.kinds import structure_of

            object.__setattr__(self, "structure", structure_of(self.structure))
            if self.min_new_tokens:
                raise ParameterError(
                    f"min_new_tokens must be 0 with a structure, which decides where the answer ends, not "
                    f"{self.min_new_tokens}"
                )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ParameterError(
                f"min_new_tokens must be at most max_new_tokens, {self.max_new_tokens}, not {self.min_new_tokens}"
            )

    def of_sample(self, index: int) -> "DecodingSettings":
        """Return the settings of answer `index`, counted from 0. Seeds wrap around at 64 bits."""
        return replace(self, seed=(self.seed + index + 2**63) % 2**64 - 2**63, n=1)

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        return {name: value for name, row in SETTINGS.items() if (value := getattr(self, name)) != row.default}


@dataclass(frozen=True)
class RequestParams:
    """The fixed parameters of one row."""

    settings: DecodingSettings  # of the request, with the operating point resolved
    # K; 1 in method `ntp`. Smaller than requested if the answer is short
    block_size: int
    prompt_length: int  # tokens of the prompt
    limit: int  # the position past the last one that may be generated
    ends: tuple[int, ...]  # token ids that end the answer

    @property
    def adapts_drafts(self) -> bool:
        """Whether the draft length is chosen before each pass."""
        return self.settings.method == "exact" and self.settings.drafts == "adaptive"

    @property
    def most_passes(self) -> int:
        """An upper bound on the passes after the prefill: for each token, one that drafts and one that commits."""
        return 1 + 2 * (self.limit - self.prompt_length)


SETTINGS: dict[str, Setting] = table_of(DecodingSettings)
"""The table: a row for each field of `DecodingSettings`, in their order."""

POINT = tuple(name for name, row in SETTINGS.items() if row.group == "point" and name != "method")
"""The settings that, with the method, make up the operating point: the trade of accuracy for passes."""


HYPERPARAMETERS = {
    "gamma": Setting(
        name="gamma",
        type=float,
        default=None,
        help="Entropy bound of the sampler, in nats, at least 0: the maximum total uncertainty of the tokens that one pass "
        "reveals. 0 reveals one token per pass, inf the whole block. Default: inf in method exact; 0.1 in sbd. A "
        "calibrated model has its own.",
        range=Range(0),
        group="point",
        metavar="X",
    )
}
"""Hyperparameters of samplers that callers accept next to the settings."""


def available(*, but_not: Collection[str] = (), names: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """Return the rows of settings that a caller accepts, by its names. Hyperparameters follow the sampler's row.

    Args:
        but_not: settings that the caller doesn't accept.
        names: the caller's names of settings, if different.
    """
    names, found = names or {}, {}
    assert {*but_not, *names} <= SETTINGS.keys()
    for name, row in SETTINGS.items():
        if name not in but_not and not row.is_python:
            found[names.get(name, name)] = row
        if name == "sampler":
            found |= HYPERPARAMETERS
    return found


RENAMED = {"draft_lookup": "prompt_lookup"}
"""Earlier names of settings, which still work."""


def with_current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under the current names of their settings. Warn of each earlier name, or raise `ParameterError` if a
    setting is given by both of its names."""
    found = dict(values)
    for earlier in RENAMED.keys() & values.keys():
        name, value = RENAMED[earlier], found.pop(earlier)
        if found.get(name) is not None:
            raise ParameterError(f"{name} is given more than once: {earlier} is its earlier name")
        warn(f"{earlier} is now called {name}: use that name, the earlier one will go")
        found[name] = value
    return found


def _takes_earlier_names(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def initialise(self: DecodingSettings, *args: Any, **named: Any) -> None:
        init(self, *args, **with_current_names(named))

    return initialise


DecodingSettings.__init__ = _takes_earlier_names(DecodingSettings.__init__)  # type: ignore[method-assign]

_ROWS = [f"    {row.name}: {row.help}" + f" Valid: {row.range}." * bool(str(row.range)) for row in SETTINGS.values()]
DecodingSettings.__doc__ = "\n".join([f"{DecodingSettings.__doc__}\n\nAttributes:", *_ROWS])

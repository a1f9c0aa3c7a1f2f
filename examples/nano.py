"""Set Block Decoding in one file, with PyTorch and Transformers alone: read this first.

    python examples/nano.py            # decode a word problem with the included model, in three ways
    python examples/nano.py train      # train a toy model of counting in blocks, in about a minute, then decode with it

The paper is arXiv 2509.04185, and equations and algorithms have its numbers. One text at a time, greedy, no speed. The library
computes the same losses, tokens and passes (tests/test_nano.py), for batches, any model and any settings.

    noise, doubled, loss        training        eq. 13 and 14, figure 2
    Model.forward               one pass        eq. 9, figure 3
    decode_plain                plain decoding  one token a pass
    entropy_bounded             the sampler     eq. 8
    decode_blocks               method sbd      Algorithms 2 and 3
    decode_exact                method exact    blocks as drafts, each checked by the pass that commits it
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

INCLUDED = Path(__file__).parent.parent / "src" / "setblock" / "assets" / "word-problems"

# ---------------------------------------------------------------------------------------------------------------- training


def noise(length: int, generator: torch.Generator) -> Tensor:
    """Return [L] bool, which tokens of a text become the mask token (eq. 13).

    The text draws one η ~ U(0, 1), and each token is masked with probability η.
    """
    rate = torch.rand((), generator=generator)
    return torch.rand(length, generator=generator) < rate


def doubled(length: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Return position ids [2L] and the attention mask [2L, 2L] of a text x followed by its noisy copy x̂ (figure 2).

    A token sees the clean tokens *before its limit*: of a clean token that is its own position + 1, which is causal; of a
    noisy one the start of its block. A noisy token also sees its whole block, in both directions.
    """
    position = torch.arange(length)
    start = position // block_size * block_size  # of each token's block
    limit = torch.cat([position + 1, start])  # [2L]
    sees_clean = position < limit[:, None]  # [2L, L]
    sees_noisy = start == torch.cat([torch.full_like(start, -1), start])[:, None]  # [2L, L]; no clean token sees one
    return position.repeat(2), torch.cat([sees_clean, sees_noisy], dim=1)


def loss(
    model: PreTrainedModel, tokens: Tensor, is_masked: Tensor, *, block_size: int, mask_token: int, shift: bool = False
) -> Tensor:
    """Return eq. 14 for one text, summed over its tokens, in nats.

    Args:
        tokens: [L] the text x.
        is_masked: [L] bool, what `noise` drew.
        block_size: k. Algorithm 1 draws it from 2..16 for each step.
        shift: False, as in the paper: the output at a masked position predicts that position. True: it predicts the next
            one, as a next-token model has always done. The first token of a block is then left to the clean copy.
    """
    length = len(tokens)
    noisy = tokens.masked_fill(is_masked, mask_token)
    position, mask = doubled(length, block_size)
    both = torch.cat([tokens, noisy])[None]
    given = model(input_ids=both, position_ids=position[None], attention_mask=mask[None, None])
    logits = given.logits[0].float()  # [2L, V]
    clean, block = logits[:length], logits[length:]

    # 1. Next tokens, from the clean copy: - sum of log p(x_t | x_<t ;)
    next_token = F.cross_entropy(clean[:-1], tokens[1:], reduction="sum")

    # 2. Masked tokens, from the noisy copy: - sum of [x̂_i = m] log p(x_i | x_<t ; x̂_t .. x̂_(t+k-1))
    place = is_masked.nonzero()[:, 0]
    if shift:
        place = place[place % block_size != 0]
    masked_token = F.cross_entropy(block[place - int(shift)], tokens[place], reduction="sum")
    return next_token + masked_token


# ---------------------------------------------------------------------------------------------------------------- decoding


@dataclass(frozen=True)
class Model:
    """Hold a causal LM that was trained for blocks, and what its checkpoint records.

    Attributes:
        lm: the model.
        mask_token: m.
        end_of_text: the token that ends an answer.
        shift: as in `loss`.
    """

    lm: PreTrainedModel
    mask_token: int
    end_of_text: int
    shift: bool

    def forward(self, cache: DynamicCache, causal: list[int], block: list[int | None]) -> Tensor:
        """Run one pass behind what is cached, and return its logits [n + k, V] (eq. 9).

        The n `causal` tokens attend causally, and their keys and values stay in the cache. The k tokens of the `block` (None:
        masked) attend to everything before them and to each other. What they leave in the cache is removed again, so that the
        cache is always that of plain decoding.
        """
        past, n, k = cache.get_seq_length(), len(causal), len(block)
        tokens = causal + [self.mask_token if token is None else token for token in block]
        position = past + torch.arange(n + k)
        limit = torch.where(position < past + n, position + 1, past + n + k)
        mask = torch.arange(past + n + k) < limit[:, None]  # [n + k, past + n + k] (figure 3)
        given = self.lm(
            input_ids=torch.tensor([tokens]),
            position_ids=position[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
        )
        logits: Tensor = given.logits[0].float()
        if k:
            cache.crop(-k)
        logits[:, self.mask_token] = -torch.inf  # a mask is never an answer
        return logits

    def of_block(self, logits: Tensor, first: Tensor) -> Tensor:
        """Return the logits [k, V] of a block's tokens from the pass's outputs [k, V] at its positions.

        Args:
            first: [V] the causal output before the block, which predicts its first token for nothing. (In the paper the block's
                own output does. The library has both: `first_token_from_causal`.)
        """
        return torch.cat([first[None], logits[:-1] if self.shift else logits[1:]])


@dataclass
class Answer:
    """Hold the tokens so far, end-of-text included, and the forward passes that they took, prefill included."""

    tokens: list[int] = field(default_factory=list)
    passes: int = 1


Rule = Callable[[Tensor, Tensor], Tensor]
"""Of logits [k, V] and candidates [k] bool: which candidates to reveal, [k] bool, at least one."""


def entropy_bounded(gamma: float) -> Rule:
    """Return the entropy-bounded sampler (eq. 8).

    Sort the masked positions by the entropy H of their distributions, in nats. Reveal the first s, s the largest number with
    H_1 + ... + H_(s-1) <= gamma. The sum bounds what the revealed tokens, chosen independently, can say about each other.
    """

    def select(logits: Tensor, candidates: Tensor) -> Tensor:
        entropy = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)  # [k]
        ordered, order = entropy.masked_fill(~candidates, torch.inf).sort(stable=True)
        before = F.pad(ordered.cumsum(dim=0), (1, -1))  # [k] the sum of those before
        return torch.zeros_like(candidates).index_fill(0, order[before <= gamma], True) & candidates

    return select


def decode_plain(model: Model, prompt: Tensor, *, limit: int) -> Answer:
    """Decode at most `limit` tokens, one a pass: what `decode_exact` must equal."""
    cache, answer = DynamicCache(), Answer()
    logits = model.forward(cache, prompt.tolist(), [])  # prefill
    while True:
        answer.tokens.append(int(logits[-1].argmax()))
        if answer.tokens[-1] == model.end_of_text or len(answer.tokens) == limit:
            return answer
        logits = model.forward(cache, answer.tokens[-1:], [])
        answer.passes += 1


def decode_blocks(model: Model, prompt: Tensor, *, limit: int, block_size: int, rule: Rule) -> Answer:
    """Decode at most `limit` tokens in blocks that nothing checks (Algorithms 2 and 3)."""
    cache, answer = DynamicCache(), Answer()
    first = model.forward(cache, prompt.tolist(), [])[-1]  # prefill: it knows the first token of the first block
    block: list[int | None] = [int(first.argmax()), *[None] * (min(block_size, limit) - 1)]
    while True:
        # 1. A block that is whole ends the answer, or is committed by the first pass over the next block
        to_commit = leading(model, block) if is_whole(model, block) else []
        answer.tokens += to_commit
        if to_commit:
            if to_commit[-1] == model.end_of_text or len(answer.tokens) == limit:
                return answer
            block = [None] * min(block_size, limit - len(answer.tokens))
        # 2. A pass over the block
        logits = model.forward(cache, to_commit, block)
        answer.passes += 1
        if to_commit:
            first = logits[len(to_commit) - 1]
        of_block = model.of_block(logits[len(to_commit) :], first)
        # 3. Reveal some of the masked positions, at least one
        for i in rule(of_block, candidates_of(model, block)).nonzero()[:, 0].tolist():
            block[i] = int(of_block[i].argmax())


def decode_exact(model: Model, prompt: Tensor, *, limit: int, block_size: int, rule: Rule) -> Answer:
    """Decode at most `limit` tokens in blocks, with the text of `decode_plain`.

    A block gets one pass. What it reveals from the left is a draft. The pass that commits the draft feeds it causally, so its
    outputs are plain decoding's logits: they say how much of the draft is right. If all of it is, nothing was lost, since the
    same pass was the first one over the next block. Otherwise they say the right token, too. So every pass yields a token.
    """
    cache, answer = DynamicCache(), Answer()
    draft = [int(model.forward(cache, prompt.tolist(), [])[-1].argmax())]  # prefill
    while True:
        # 1. The first token of a draft is plain decoding's: the answer may end with it
        if draft[0] == model.end_of_text or len(answer.tokens) + 1 == limit:
            answer.tokens += draft[:1]
            return answer
        # 2. One pass: the draft causally, and a new block behind it, unless the answer may end with the draft
        n = len(draft)
        room = 0 if draft[-1] == model.end_of_text else limit - len(answer.tokens) - n
        block: list[int | None] = [None] * min(block_size, room)
        logits = model.forward(cache, draft, block)
        answer.passes += 1
        # 3. Keep the draft up to the first token that plain decoding would not have chosen
        right = logits[:n].argmax(dim=-1).tolist()  # [n] what follows each token of the draft
        agreed = next((i for i in range(n - 1) if right[i] != draft[i + 1]), n - 1) + 1
        answer.tokens += draft[:agreed]
        if agreed < n:
            cache.crop(agreed - n)
            draft = [right[agreed - 1]]
            continue
        if not block:
            return answer
        # 4. All of it was right: fill the block. Its first token is plain decoding's
        of_block = model.of_block(logits[n:], logits[n - 1])
        reveal = rule(of_block, candidates_of(model, block))
        reveal[0] = True
        for i in reveal.nonzero()[:, 0].tolist():
            block[i] = int(of_block[i].argmax())
        draft = leading(model, block)


def needed(model: Model, block: list[int | None]) -> int:
    """Return how many tokens of a block count: those up to its first end of text."""
    return block.index(model.end_of_text) + 1 if model.end_of_text in block else len(block)


def leading(model: Model, block: list[int | None]) -> list[int]:
    """Return the tokens of a block before its first gap, up to its first end of text."""
    counted = block[: needed(model, block)]
    known = counted.index(None) if None in counted else len(counted)
    return [token for token in counted[:known] if token is not None]


def is_whole(model: Model, block: list[int | None]) -> bool:
    """Return whether no token that counts is masked."""
    return len(leading(model, block)) == needed(model, block)


def candidates_of(model: Model, block: list[int | None]) -> Tensor:
    """Return [k] bool, the masked positions that count."""
    return torch.tensor([token is None and i < needed(model, block) for i, token in enumerate(block)])


# ------------------------------------------------------------------------------------------------------------------- to try


def main() -> None:
    """Decode with the included model, or train a toy and decode with that."""
    if sys.argv[1:] == ["train"]:
        model, prompt, shown = counting_model(), torch.tensor([5, 9, 12]), str  # step 3 from 7, 10
    else:
        tokenizer = AutoTokenizer.from_pretrained(INCLUDED)
        lm = AutoModelForCausalLM.from_pretrained(INCLUDED).eval()
        model = Model(lm, mask_token=1, end_of_text=0, shift=True)
        question = (
            " ".join(sys.argv[1:]) or "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"
        )
        prompt = tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt").input_ids[0]
        shown = tokenizer.decode
    with torch.inference_mode():
        answers = {
            "plain": decode_plain(model, prompt, limit=100),
            "blocks": decode_blocks(model, prompt, limit=100, block_size=16, rule=entropy_bounded(0.01)),
            "exact": decode_exact(model, prompt, limit=100, block_size=16, rule=entropy_bounded(1.0)),
        }
    print(shown(answers["exact"].tokens))
    for name, answer in answers.items():
        same = "the same text" if answer.tokens == answers["plain"].tokens else "another text"
        print(f"{name}: {len(answer.tokens)} tokens in {answer.passes} passes, {same}")


def counting_model(steps: int = 300) -> Model:
    """Return a tiny model that was trained to count: a step, a number, that number plus the step, and so on modulo 20, until
    the end of text. Token 0 ends a text, 1 is the mask, and n + 2 is the number n."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    lm = LlamaForCausalLM(LlamaConfig(vocab_size=22, num_key_value_heads=2, **sizes))
    optimiser = torch.optim.AdamW(lm.parameters(), lr=3e-3)
    for number in range(steps):
        total = torch.zeros(())
        block_size = drawn(2, 17)  # Algorithm 1
        for _ in range(8):
            step, start = drawn(1, 4), drawn(0, 20)
            numbers = [step, *[(start + i * step) % 20 for i in range(30)]]
            tokens = torch.tensor([*[n + 2 for n in numbers], 0])
            is_masked = noise(len(tokens), generator)
            total = total + loss(lm, tokens, is_masked, block_size=block_size, mask_token=1, shift=True) / len(tokens)
        optimiser.zero_grad()
        torch.autograd.backward(total / 8)
        optimiser.step()
        if number % 50 == 49:
            print(f"step {number + 1}: loss {total.item() / 8:.2f}")
    return Model(lm.eval(), mask_token=1, end_of_text=0, shift=True)


if __name__ == "__main__":
    main()

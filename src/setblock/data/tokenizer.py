"""Training of a byte-level BPE tokenizer on a corpus, for models with random weights.

It follows the conventions of present-day tokenizers (a word with its leading space, single digits, reserved special
tokens) and is a stock Transformers tokenizer. Any text round-trips: unknown words fall back to bytes.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from setblock.errors import SetBlockError

END_OF_TEXT = "<|endoftext|>"
RESERVED = tuple(f"<|reserved_special_token_{i}|>" for i in range(4))

# Words with their leading space, single digits, punctuation runs, white space: the split Qwen's tokenizers use. Llama 3's takes
# three digits to a token, from which a small model learns arithmetic much more slowly: sums become facts about pairs of tokens.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

QUESTION_ANSWER_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'Question: ' + message['content'] + '\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + '<|endoftext|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` ids. The special tokens come first: end-of-text is id 0, the reserved ones 1 to
    4, of which a later fine-tuning takes one as its mask token, so that no embedding has to be appended. Raise `SetBlockError`
    for less than 261 ids: 256 bytes and the special tokens."""
    smallest = 256 + 1 + len(RESERVED)
    if vocab_size < smallest:
        raise SetBlockError(f"vocab_size must be at least {smallest}, not {vocab_size}")
    tokenizer, split = Tokenizer(models.BPE()), pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, *RESERVED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=QUESTION_ANSWER_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )

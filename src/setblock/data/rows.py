"""Make the rows that a recipe's data section gives a trainer, and count them.

Knows which stage follows which: records -> documents -> corpus -> rows. Knows nothing of noise or models.
"""

from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits, cached, packed_rows
from setblock.data.corpus.tokenised import tokenised_rows
from setblock.data.section import DataSection
from setblock.data.texts.encoding import encoders_of
from setblock.data.texts.records import records_of


def rows_of(section: DataSection, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits) -> dict[str, CorpusRows]:
    """Return the rows of a recipe's data section: `train`, and `evaluation` if there are any. The tokenizer's template writes
    chats. Raise `SetBlockError` if the data can't be read, or is not as the section and the limits say."""
    if section.tokenised is not None:
        return tokenised_rows(section, tokenizer, limits)
    sources = {
        part: [cached(encoder, records_of(encoder.section), limits) for encoder in encoders_of(own, tokenizer)]
        for part, own in section.parts.items()
    }
    return packed_rows(section, limits, sources, pad_token_id=tokenizer.eos_token_id)

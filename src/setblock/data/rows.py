"""Make the rows that a recipe's data section gives a trainer, and count them.

Knows which stage follows which: records -> documents -> corpus -> rows. Knows nothing of noise or models.
"""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits, cached, mixed, refuse_ids
from setblock.data.corpus.tokenised import tokenised_rows
from setblock.data.packing import RowDataset
from setblock.data.section import DataSection
from setblock.data.texts.chat import read_template
from setblock.data.texts.encoding import encoders_of
from setblock.data.texts.records import records_of


@dataclass(frozen=True)
class RecipeRows:
    """Hold the rows to train on and those to evaluate on, if there are any."""

    train: RowDataset
    evaluation: RowDataset | None = None

    @property
    def fingerprint(self) -> str:
        """Return a hash of the documents to train on."""
        assert isinstance(self.train.rows, CorpusRows)
        return self.train.rows.fingerprint


def rows_of(
    section: DataSection,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context_length: int,
    vocabulary: int | None = None,
    mask_token_id: int | None = None,
) -> RecipeRows:
    """Return the rows of a recipe's data section.

    Args:
        tokenizer: the model's; chats are written by its template.
        context_length: tokens that the model's context has room for.
        vocabulary: how many ids the model has embeddings for.
        mask_token_id: the model's mask token, which no text may hold.

    Raises:
        SetBlockError: the data can't be read, or is not as the section says.
    """
    limits = limits_of(section, context_length=context_length, vocabulary=vocabulary, mask_token_id=mask_token_id)
    if section.tokenised is not None:
        return RecipeRows(*map(RowDataset, tokenised_rows(section, tokenizer, limits)))

    def rows(section: DataSection) -> list[RowDataset]:
        sources = []
        for encoder in encoders_of(section, tokenizer):
            sources.append(cached(encoder, records_of(encoder.section)))
            refuse_ids(sources[-1], limits)
        documents = mixed(sources, [source.weight for source in section.sources], seed=section.seed)
        pad = tokenizer.eos_token_id
        return [
            RowDataset(CorpusRows.of(documents, section, limits, pad_token_id=pad, take_held_out=held_out))
            for held_out in ((False, True) if section.evaluation_fraction else (False,))
        ]

    own = section.evaluation_texts
    return RecipeRows(*rows(section), *([] if own is None else rows(own)))


def limits_of(
    section: DataSection, *, context_length: int, vocabulary: int | None = None, mask_token_id: int | None = None
) -> DocumentLimits:
    """Return what the documents of a section must keep to; the arguments are those of `rows_of`."""
    return DocumentLimits(
        longest=min(context_length, section.row_length or context_length),
        too_long=section.too_long,
        drop_special=section.special_tokens == "drop",
        vocabulary=vocabulary,
        mask_token_id=mask_token_id,
    )


def use_chat_template(section: DataSection, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer the template that the section names, if it names one, so that it is saved with the model, or raise
    `SetBlockError` if the file can't be read, or is no Jinja template."""
    if section.chat_template is not None:
        tokenizer.chat_template = read_template(section.chat_template)

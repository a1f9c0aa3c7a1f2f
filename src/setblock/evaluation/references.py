"""Scores of a model on the reference answers of records, token by token, as in training. Free chats have no other judge."""

from collections.abc import Callable, Sequence

from setblock.data.packing import Document
from setblock.data.section import DataSection
from setblock.data.tasks import Example
from setblock.data.texts.encoding import Encoder
from setblock.data.texts.records import SourceRecord
from setblock.data.texts.shapes import shaped
from setblock.errors import SetBlockError, warn
from setblock.evaluation.records import RecordExample
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.runners.teacher_forcing import TokenScores, has_scores, token_scores
from setblock.model.sbd_model import SBDModel


def reference_scores(
    model: LanguageModel,
    examples: Sequence[Example],
    *,
    raw: bool,
    on_progress: Callable[[int], None] = lambda done: None,
) -> TokenScores | None:
    """Return plain decoding's scores of the reference answers of records. Each token of an assistant's message or a completion,
    the end token included, is scored given the reference's tokens before it. Return None if the examples are not records with
    references, and, with a warning that says why, if the references can't be scored.

    Args:
        raw: whether prompts are continued without the chat template.
        on_progress: called with the number of records scored so far.
    """
    records = [each for each in examples if isinstance(each, RecordExample) and each.answer is not None]
    if not records:
        return None
    try:
        if not isinstance(model, SBDModel):
            raise SetBlockError("only the runtime transformers gives the probabilities of tokens that are not decoded")
        documents = _documents(model, records, raw=raw)
        mask_token_id = None if model.sbd_config is None else model.sbd_config.mask_token_id
        return token_scores(model.model, documents, mask_token_id=mask_token_id, on_progress=on_progress)
    except SetBlockError as error:
        warn(f"the loss of the reference answers is not measured: {error}")
        return None


def _documents(model: SBDModel, records: Sequence[RecordExample], *, raw: bool) -> list[Document]:
    """Return the documents of records as training encodes them; special-token text in them is plain text, as in prompts."""
    data = DataSection.model_validate({"source": "records", "special_tokens": "spell"})
    encoder = Encoder(model.tokenizer, data.sources[0], data)
    sources = (SourceRecord(each.where, each.reference_record(raw=raw)) for each in records)
    documents = []
    for encoded in encoder.documents(*shaped(encoder.section, sources)):
        document = Document(encoded["token_ids"], encoded["carries_loss"])
        if model.context_length is not None and len(document) > model.context_length:
            room = f"more than the {model.context_length} of the model's context"
            raise SetBlockError(f"{encoded['where']} has {len(document)} tokens with its answer, {room}")
        if not has_scores(document):
            raise SetBlockError(f"{encoded['where']} has no token to predict from others")
        documents.append(document)
    return documents

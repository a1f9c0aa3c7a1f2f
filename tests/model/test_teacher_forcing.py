"""The loss of documents' tokens, against a loop over Transformers' own logits."""

from dataclasses import astuple

import pytest
import torch

from families import tiny_model
from scores import naive_scores
from setblock.data.packing import Document
from setblock.model.runners import teacher_forcing
from setblock.model.runners.teacher_forcing import has_scores, token_scores


def random_documents() -> list[Document]:
    """Of several lengths; also one whose first token carries loss, which nothing can predict."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(2, 60, (length,), generator=generator).tolist() for length in (3, 17, 9, 2, 12)]
    documents = [Document(each, [bool(n * place % 3) for place in range(len(each))]) for n, each in enumerate(ids, 1)]
    documents[0] = Document(ids[0], [True] * 3)
    documents[2] = Document(ids[2], [False] * 5 + [True] * 4)
    return documents


@pytest.mark.parametrize("banned", [None, 1])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2", "gpt2"])
def test_the_scores_are_those_of_a_plain_loop(family: str, banned: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many documents share a pass, and however few logits there is room for."""
    model, documents = tiny_model(family, vocab_size=200), random_documents()
    documents = [each for each in documents if has_scores(each)]
    # The banned token is what the model would write most often, and one likely token of the text is the model's own
    with torch.no_grad():
        written = model(input_ids=torch.tensor([documents[1].token_ids])).logits[0].argmax(dim=-1).tolist()
    documents.append(Document([*documents[1].token_ids, written[-1]], [False] * 17 + [True]))
    if banned is not None:
        banned = next(token for token in (*written, 199) if all(token not in each.token_ids for each in documents))
    loss, accuracy, tokens = naive_scores(model, [(d.token_ids, d.carries_loss) for d in documents], banned=banned)
    assert 0 < accuracy < 1
    for tokens_at_once, targets in ((4096, 4096), (30, 4096), (4096, 5), (1, 1)):
        monkeypatch.setattr(teacher_forcing, "_TOKENS_AT_ONCE", tokens_at_once)
        monkeypatch.setattr(teacher_forcing, "_LOGITS_AT_ONCE", 200 * targets)
        done: list[int] = []
        found = token_scores(model, documents, mask_token_id=banned, on_progress=done.append)
        assert astuple(found) == (pytest.approx(loss, rel=1e-4), accuracy, tokens, len(documents))
        assert done == sorted(done)
        assert done[-1] == len(documents)


def test_a_banned_token_counts_where_it_would_be_written() -> None:
    """Else the tests above could not tell whether it is banned."""
    model, documents = tiny_model("llama", vocab_size=200), [each for each in random_documents() if has_scores(each)]
    with torch.no_grad():
        most_likely = int(model(input_ids=torch.tensor([documents[1].token_ids])).logits[0, 3].argmax())
    kept = [each for each in documents if most_likely not in each.token_ids]
    assert token_scores(model, kept, mask_token_id=most_likely).loss < token_scores(model, kept).loss

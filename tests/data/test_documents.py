"""Documents of Python's records: the tokens and the loss are those of a file of the same records."""

from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerBase

from data.conftest import CHATML, chat
from setblock.data import encode_records
from setblock.data.packing import Document
from setblock.data.tasks.word_problems import WordProblem
from setblock.errors import SetBlockError

END = "<|endoftext|>"


def learned(tokenizer: PreTrainedTokenizerBase, document: Document) -> str:
    pairs = zip(document.token_ids, document.carries_loss, strict=True)
    return str(tokenizer.decode([token for token, carries_loss in pairs if carries_loss]))


def test_loss_is_on_the_completion_and_its_end_of_text(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    (document,) = encode_records(trained_tokenizer, [{"prompt": "Question: 1?", "completion": " Two."}])
    prompt = trained_tokenizer("Question: 1?").input_ids
    assert document.token_ids == [*prompt, *trained_tokenizer(" Two.").input_ids, trained_tokenizer.eos_token_id]
    assert document.carries_loss == [i >= len(prompt) for i in range(len(document))]


def test_chats_are_records(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = CHATML
    records: Any = ({"messages": chat("a", "b", "c", "d")}, {"messages": chat("a", "b")})
    assert [learned(tokenizer, each) for each in encode_records(tokenizer, records)] == [f"b{END}d{END}", f"b{END}"]
    assert all(next(encode_records(tokenizer, records, loss_on="all")).carries_loss)


def test_special_tokens_of_a_text_are_letters_or_reported(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    records = [{"prompt": f"a{END}", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    with pytest.raises(SetBlockError, match="record 1: its text contains the special token"):
        list(encode_records(trained_tokenizer, records))
    first, _ = encode_records(trained_tokenizer, records, special_tokens="spell")
    assert first.token_ids.count(trained_tokenizer.eos_token_id) == 1
    assert trained_tokenizer.decode(first.token_ids) == f"a{END}b{END}"
    (kept,) = encode_records(trained_tokenizer, records, special_tokens="drop")
    assert trained_tokenizer.decode(kept.token_ids) == f"cd{END}"


def test_no_end_token_comes_between_prompt_and_completion(tokenizer: PreTrainedTokenizerBase) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    (document,) = encode_records(tokenizer, [{"prompt": "a", "completion": "b"}])
    assert tokenizer.decode(document.token_ids) == f"ab{END}"


def test_rows_of_datasets_have_no_nulls_of_other_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    """Arrow gives each object the keys of all others."""
    calls = [[{"name": name, "arguments": {key: 1}}] for name, key in (("f", "a"), ("g", "b"))]
    rows = [{"messages": [*chat("a"), {"role": "assistant", "content": None, "tool_calls": call}]} for call in calls]
    content = "(message['content'] ~ ((message.tool_calls | tojson) if message.tool_calls else ''))"
    tokenizer.chat_template = CHATML.replace("message['content']", content)
    plain, of_arrow = (list(encode_records(tokenizer, each)) for each in (rows, datasets.Dataset.from_list(rows)))
    assert "null" not in learned(tokenizer, of_arrow[0])
    assert [each.token_ids for each in of_arrow] == [each.token_ids for each in plain]


def test_chat_template_writes_the_prompt_of_a_problem(
    trained_tokenizer: PreTrainedTokenizerBase, problems: list[WordProblem]
) -> None:
    for problem in problems[:5]:
        messages = [{"role": "user", "content": problem.question}]
        rendered = trained_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered == problem.prompt


def test_documents_spell_their_problems(
    trained_tokenizer: PreTrainedTokenizerBase, problems: list[WordProblem]
) -> None:
    records = [{"prompt": problem.prompt, "completion": problem.completion} for problem in problems]
    for document, problem in zip(encode_records(trained_tokenizer, records), problems, strict=True):
        text = trained_tokenizer.decode(document.token_ids, skip_special_tokens=True)
        assert text == f"{problem.prompt}{problem.completion}"

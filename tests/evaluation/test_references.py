"""The loss of records' reference answers: tokens, spans and ends are those of training, and the prompt that of decoding."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from families import tiny_sbd
from scores import naive_scores
from setblock.data.texts.encoding import encode_records
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockWarning
from setblock.evaluation.records import task_of_records
from setblock.evaluation.run import evaluate

SHORT = DecodingSettings(method="ntp", max_new_tokens=2)
TURNS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHATS = (
    [user("Tom has 3 pens?"), assistant("No, 4.")],
    [user("Hi"), assistant("Hello"), user("How many bags?"), assistant("12 bags of 4 apples.")],
)


@pytest.fixture
def model(tokenizer):
    tokenizer.chat_template = TURNS
    return tiny_sbd("llama", tokenizer, max_position_embeddings=128)


@pytest.fixture
def written(tmp_path):
    def written(*records):
        path = tmp_path / "own.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        return path

    return written


def marked(tokenizer, chat):
    """Each answer, up to the token that ends it, without what the template writes behind that."""
    ids = tokenizer.apply_chat_template(chat, return_dict=False)
    scored = [False] * len(ids)
    for index, message in enumerate(chat):
        if message["role"] == "assistant":
            before = encode_prompt(tokenizer, chat[:index])
            assert ids[: len(before)] == before
            end = ids.index(tokenizer.eos_token_id, len(before))
            scored[len(before) : end + 1] = [True] * (end + 1 - len(before))
    return ids, scored


def as_found(result):
    found = result.figures()
    return found["token_loss"], found["mean_token_accuracy"], found["reference_tokens"]


def test_chats_are_scored_as_they_are_trained_on(model, written):
    path = written(*({"messages": chat} for chat in CHATS))
    expected = [marked(model.tokenizer, chat) for chat in CHATS]
    trained = encode_records(model.tokenizer, ({"messages": chat} for chat in CHATS))
    assert [(list(each.token_ids), list(each.carries_loss)) for each in trained] == expected
    # The mask token is one that the model would write, so that it matters that it may not
    ids = torch.tensor([expected[0][0]])
    written = model.model(input_ids=ids).logits[0, expected[0][1].index(True) - 1].argsort(descending=True).tolist()
    mask = next(token for token in written if not any(token in ids for ids, _ in expected))
    model.sbd_config = replace(model.sbd_config, mask_token_id=mask)
    loss, accuracy, tokens = naive_scores(model.model, expected, banned=mask)
    assert loss < 0.999 * naive_scores(model.model, expected)[0]
    done = []
    result = evaluate(model, task_of_records(path), settings=SHORT, on_references=done.append)
    assert as_found(result) == (pytest.approx(loss, rel=1e-4), accuracy, tokens)
    assert done[-1] == 2
    first = evaluate(model, task_of_records(path), settings=SHORT, limit=1)
    assert as_found(first)[2] == sum(expected[0][1])


@pytest.mark.parametrize("raw", [False, True])
def test_a_completion_is_scored_behind_the_prompt_as_it_is_asked(model, written, raw):
    """A special token that is typed is text there, as in every prompt."""
    path = written({"prompt": "Tom has<|endoftext|> 3", "completion": " bags."})
    tokenizer, chat = model.tokenizer, [user("Tom has<|endoftext|> 3"), assistant(" bags.")]
    prompt = encode_prompt(tokenizer, chat[0]["content"], raw=raw)
    answer = [*tokenizer(" bags.").input_ids, tokenizer.eos_token_id]
    behind = [] if raw else tokenizer("\n").input_ids
    ids = [*prompt, *answer, *behind]
    scored = [place in range(len(prompt), len(prompt) + len(answer)) for place in range(len(ids))]
    loss, accuracy, tokens = naive_scores(model.model, [(ids, scored)], banned=model.sbd_config.mask_token_id)
    found = as_found(evaluate(model, task_of_records(path, raw=raw), settings=SHORT))
    assert found == (pytest.approx(loss, rel=1e-4), accuracy, tokens)


def test_records_without_references_have_no_such_figures(model, written):
    result = evaluate(model, task_of_records(written({"prompt": "Tom"})), settings=SHORT)
    assert result.references is None
    assert "token_loss" not in result.figures()


def test_references_that_can_not_be_scored_are_reported_and_the_rest_is_measured(model, written):
    long = written({"messages": CHATS[0]}, {"messages": [user("Hi"), assistant("12 bags " * 100)]})
    with pytest.warns(
        SetBlockWarning, match=r"is not measured: .*own.jsonl, line 2 has \d+ tokens with its answer, more"
    ):
        result = evaluate(model, task_of_records(long), settings=SHORT)
    assert (result.references, result.num_examples) == (None, 2)
    other = copy.copy(model)
    other.tokenizer = copy.deepcopy(model.tokenizer)
    other.tokenizer.chat_template = TURNS.replace("m.content", "(m.content if loop.last else '-')")
    with pytest.warns(SetBlockWarning, match="is not measured: .*own.jsonl, line 1: the chat template leaves out"):
        assert evaluate(other, task_of_records(written({"messages": CHATS[1][2:]})), settings=SHORT).references is None

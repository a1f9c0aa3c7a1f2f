"""The form in which a chat template writes calls of tools."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from setblock import SetBlockError
from structure.call_shapes import form_of
from structure.templates import AS_TEXT, HERMES, with_tokens

FORMS = {
    "special": ("<|reserved_special_token_2|>", "}]", '}, {"name": "'),
    "added": ("<tool_call>", "}\n</tool_call>", '}\n</tool_call>\n<tool_call>\n{"name": "'),
    "text": ("<tool_call>", "}\n</tool_call>", '}\n</tool_call>\n<tool_call>\n{"name": "'),
    "bare": (None, "}", None),
    "bare list": (None, "}]", '}, {"name": "'),
    "words": (None, "", None),
    "parts": ("<calls>", "\n```</call></calls>", "\n```</call>\n<call>function<sep>"),
    "with ids": ("[TOOL_CALLS]", ', "id": "000000000"}]', ', "id": "000000000"}, {"name": "'),
    "tags": ("<function=", "</function>", "</function><function="),
    "thinks": ("<tool_call>", "}\n</tool_call>", '}\n</tool_call>\n<tool_call>\n{"name": "'),
    "thinks, bare": (None, "}", '}\n{"name": "'),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_template_s_form_is_found(name: str, shape_of: Any) -> None:
    form = shape_of(name).form
    assert (form.mark, form.after, form.again) == FORMS[name]
    assert form.reasoning_end == ("</think>" if name.startswith("thinks") else None)
    if name == "thinks":  # no think block, though the last turn always has one
        assert (form.before, form.between) == ('<tool_call>\n{"name": "', '", "arguments": ')


def test_the_form_is_that_of_the_kwargs(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    template = HERMES.replace("<tool_call>\n", "{{ '<call>' if new else '<tool_call>\n' }}")
    tokenizer = with_tokens(trained_tokenizer, template)
    assert form_of(tokenizer).mark == "<tool_call>"
    assert form_of(tokenizer, chat_template_kwargs={"new": True}).mark == "<call>"


def test_arguments_may_have_to_be_text(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    assert form_of(with_tokens(trained_tokenizer, AS_TEXT)) == form_of(with_tokens(trained_tokenizer, HERMES))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "has no place for tools"),
        ("{{ messages[0].content }}", "has no place for tools"),
        ("{{ tools }}{{ messages[0].content }}", "does not write calls of tools as a name and a JSON object"),
    ],
)
def test_a_template_without_a_place_is_refused(
    template: str, said: str, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(SetBlockError, match=f"the model's chat template {said}"):
        form_of(with_tokens(trained_tokenizer, template))

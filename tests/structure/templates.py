"""Chat templates that call tools, as several families write them, and tokenizers with the tokens that they need."""

import copy
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

HEAD = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}"
    "{% if message.role == 'tool' %}result: {{ message.content }}\n{% else %}{{ message.role }}: "
)
TAIL = "{{ '<|endoftext|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
CALL = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
FIRST_CALL = CALL.replace("call.", "message.tool_calls[0].")
HERMES_CALLS = (
    "{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    f"<tool_call>\n{CALL}\n</tool_call>{{% endfor %}}"
)
LIST = "[{% for call in message.tool_calls %}" + CALL + "{% if not loop.last %}, {% endif %}{% endfor %}]"

HERMES = HEAD + "{{ message.content }}" + HERMES_CALLS + TAIL
BARE = (
    HEAD
    + "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    + FIRST_CALL.replace("arguments", "parameters", 1)
    + "{% else %}{{ message.content }}{% endif %}"
    + TAIL
)
BARE_LIST = HEAD + "{{ message.content }}{% if message.tool_calls %}" + LIST + "{% endif %}" + TAIL
SPECIAL = (
    HEAD + "{{ message.content }}{% if message.tool_calls %}<|reserved_special_token_2|>" + LIST + "{% endif %}" + TAIL
)
INSIDE = (  # a special token behind text that begins a call
    HEAD
    + "{{ message.content }}{% if message.tool_calls %}Call: <|reserved_special_token_2|>"
    + FIRST_CALL
    + "{% endif %}"
    + TAIL
)
BEHIND_LINE = INSIDE.replace("Call: ", "{{ '\n' }}")
WORDS = (
    HEAD
    + "{{ message.content }}{% if message.tool_calls %}Action: {{ message.tool_calls[0].function.name }}\n"
    + "Action Input: {{ message.tool_calls[0].function.arguments | tojson }}{% endif %}"
    + TAIL
)
TAGS = (
    HEAD
    + "{{ message.content }}{% for call in message.tool_calls or [] %}<function={{ call.function.name }}>"
    + "{{ call.function.arguments | tojson }}</function>{% endfor %}"
    + TAIL
)
AS_TEXT = HERMES.replace(
    " | tojson }}}\n</tool_call>", " if call.function.arguments is string else 5 }}}\n</tool_call>"
)
# As Qwen's: the last turn has a think block, empty where there was no reasoning, and earlier turns have none
THINKS = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% if loop.last or message.reasoning_content %}<think>\n"
    "{{ message.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ message.content }}"
    + HERMES_CALLS
    + "{% else %}{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
THINKS_BARE = THINKS.replace("<tool_call>\n", "").replace("\n</tool_call>", "")

# As DeepSeek's: arguments as a text that the template puts together, and tokens between all parts
PARTS = (
    HEAD
    + "{{ message.content }}{% if message.tool_calls %}<calls>{% for call in message.tool_calls %}"
    + "{% if not loop.first %}{{ '\n' }}{% endif %}<call>function<sep>{{ call.function.name }}\n```json\n"
    + "{{ call.function.arguments + '' }}\n```</call>{% endfor %}</calls>{% endif %}"
    + TAIL
)
# As Mistral's: a list behind a token, and each call with its id
WITH_IDS = SPECIAL.replace("<|reserved_special_token_2|>", "[TOOL_CALLS] ").replace(
    "tojson }}}", """tojson }}, "id": "{{ call.id }}"}"""
)

IM = (("<|im_start|>", True), ("<|im_end|>", True))
CALL_TOKENS = (("<tool_call>", False), ("</tool_call>", False))
THINK_TOKENS = (("<think>", False), ("</think>", False))
SHAPES: dict[str, tuple[str, tuple[tuple[str, bool], ...]]] = {
    "special": (SPECIAL, ()),
    "added": (HERMES, CALL_TOKENS),
    "added and special": (HERMES, (("<tool_call>", True), ("</tool_call>", True))),
    "added, as text to the grammar": (HERMES.replace("<tool_call>", "[CALL]"), (("[CALL]", False),)),
    "text": (HERMES, ()),
    "bare": (BARE, ()),
    "bare list": (BARE_LIST, ()),
    "words": (WORDS, ()),
    "parts": (PARTS, tuple((each, False) for each in ("<calls>", "<call>", "<sep>", "</call>", "</calls>"))),
    "with ids": (WITH_IDS, (("[TOOL_CALLS]", True),)),
    "tags": (TAGS, ()),
    "inside": (INSIDE, ()),
    "behind line": (BEHIND_LINE, ()),
    "thinks": (THINKS, (*IM, *CALL_TOKENS, *THINK_TOKENS)),
    "thinks, bare": (THINKS_BARE, (*IM, *THINK_TOKENS)),
    "thinks in text, bare": (THINKS_BARE, IM),
}
"""Templates with the tokens that they need: their text, and whether the tokenizer calls them special."""


def shaped(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer with a template and its tokens."""
    template, added = SHAPES[name]
    return with_tokens(tokenizer, template, added)


def with_tokens(tokenizer: PreTrainedTokenizerBase, template: str, added: Any = ()) -> PreTrainedTokenizerBase:
    made = copy.deepcopy(tokenizer)
    made.chat_template = template
    for content, special in added:
        made.add_tokens([AddedToken(content, special=special, normalized=False)])
        if content == "<|im_end|>":
            made.eos_token = content
    return made

"""Chat templates that call tools, as several families write them."""

HEAD = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}"
    "{% if message.role == 'tool' %}result: {{ message.content }}\n{% else %}{{ message.role }}: "
)
TAIL = "{{ '<|endoftext|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

HERMES = (
    HEAD + "{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{% if message.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    + TAIL
)
BARE = (
    HEAD
    + "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    '{"name": "{{ message.tool_calls[0].function.name }}", "parameters": '
    "{{ message.tool_calls[0].function.arguments | tojson }}}{% else %}{{ message.content }}{% endif %}" + TAIL
)
SPECIAL = (
    HEAD + "{{ message.content }}{% if message.tool_calls %}<|reserved_special_token_2|>"
    '[{% for call in message.tool_calls %}{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}" + TAIL
)
INSIDE = (  # a special token behind text that begins a call
    HEAD + "{{ message.content }}{% if message.tool_calls %}Call: <|reserved_special_token_2|>"
    '{"name": "{{ message.tool_calls[0].function.name }}", "arguments": '
    "{{ message.tool_calls[0].function.arguments | tojson }}}{% endif %}" + TAIL
)
BEHIND_LINE = INSIDE.replace("Call: ", "{{ '\n' }}")
TEMPLATES = {"hermes": HERMES, "bare": BARE, "special": SPECIAL, "inside": INSIDE, "behind line": BEHIND_LINE}

"""Tiny models that know twenty chats with tools by heart, and write calls as their chat templates do."""

import json
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from setblock.data.tokenizer import train_tokenizer
from setblock.model.sbd_model import SBDModel
from structure.templates import SHAPES, with_tokens

CITIES = ("Rome", "Oslo", "Lima", "Bern", "Cairo", "Tokyo")
TEXTS = {
    "Hi!": "Hi.",
    "Who are you?": "A small model [with tools].",
    "Show a person as JSON.": '{"name": "Alice", "age": 3}',
    "How is JSON written?": 'So: {"name": "weather", "city": "Rome"}',
    "Thanks.": "You are welcome. {}",
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "clock")
]
Call = tuple[str, str]


def calls_of(question: str) -> list[Call]:
    """The calls that answer a question."""
    city = next((each for each in CITIES if each in question), "")
    names = [name for name, word in (("weather", "weather"), ("clock", "time")) if word in question]
    return [(name, json.dumps({"city": city})) for name in names]


def chats(*, several: bool, reasoning: bool) -> list[list[dict[str, Any]]]:
    """Twenty: questions with one call, with two if a template has `several`, with texts, and with a tool's result."""
    questions = [f"What is the {what} in {city}?" for what in ("weather", "time") for city in CITIES]
    questions += [f"What are the weather and time in {city}?" for city in CITIES[:2]] if several else []
    found = []
    for question in questions:
        thought = {"reasoning_content": f"A call is best for {question[-6:-1]}."} if reasoning else {}
        called = [
            {"type": "function", "id": "1", "function": {"name": name, "arguments": json.loads(arguments)}}
            for name, arguments in calls_of(question)
        ]
        found.append([_user(question), {"role": "assistant", "content": "", "tool_calls": called, **thought}])
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    before = [found[0][0], {**found[0][1], "reasoning_content": None}, result]
    found.append([*before, {"role": "assistant", "content": "It is sunny."}])
    return [*found, *([_user(each), {"role": "assistant", "content": text}] for each, text in TEXTS.items())]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def trained_to_call(name: str, *, steps: int = 250) -> SBDModel:
    """A model that was trained to call tools in a shape of `SHAPES`."""
    torch.manual_seed(0)
    template, added = SHAPES[name]
    names = "{{ tools | map(attribute='function.name') | join(' ') }}"  # short: no such model reads more
    template = template.replace("{{ tools | tojson }}", names)
    rows = chats(several="one call" not in template and "[0]" not in template, reasoning=name.startswith("thinks"))
    tokenizer = train_tokenizer([json.dumps(row) for row in rows], vocab_size=400)
    tokenizer = with_tokens(tokenizer, template, added)
    written = [_tokens(tokenizer, row) for row in rows]
    longest = max(len(ids) for ids, _ in written)
    inputs, labels = torch.full((len(rows), longest), 5), torch.full((len(rows), longest), -100)
    for place, (ids, begin) in enumerate(written):
        inputs[place, : len(ids)] = torch.tensor(ids)
        labels[place, begin : len(ids)] = torch.tensor(ids[begin:])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, pad_token_id=None,
        bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        loss = model(input_ids=inputs, labels=labels).loss
        if loss.item() < 0.02:
            break
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return SBDModel(model.eval(), tokenizer)


def _tokens(tokenizer: PreTrainedTokenizerBase, row: list[dict[str, Any]]) -> tuple[list[int], int]:
    """A chat's tokens, and where its answer begins. It ends with the end of text."""

    def rendered(messages: list[dict[str, Any]], **how: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, **how))

    prompt, text = rendered(row[:-1], add_generation_prompt=True), rendered(row)
    assert text.startswith(prompt)
    requested, answer = (tokenizer(each, add_special_tokens=False).input_ids for each in (prompt, text[len(prompt) :]))
    return requested + answer[: answer.index(tokenizer.eos_token_id) + 1], len(requested)

"""Documents: texts become token ids, with the loss on the completion."""

from transformers import PreTrainedTokenizerBase

from setblock.data.packing import encode_pairs
from setblock.data.tasks.word_problems import WordProblem


def test_loss_is_on_the_completion_and_its_end_of_text(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    (document,) = encode_pairs(trained_tokenizer, [("Question: 1?", " Two.")])
    prompt = trained_tokenizer("Question: 1?").input_ids
    assert document.token_ids == [*prompt, *trained_tokenizer(" Two.").input_ids, trained_tokenizer.eos_token_id]
    assert document.carries_loss == [i >= len(prompt) for i in range(len(document))]


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
    pairs = [(problem.prompt, problem.completion or "") for problem in problems]
    for document, problem in zip(encode_pairs(trained_tokenizer, pairs), problems, strict=True):
        text = trained_tokenizer.decode(document.token_ids, skip_special_tokens=True)
        assert text == f"{problem.prompt}{problem.completion}"

"""Task files for the harness's tests: word problems in the form of GSM8K, choices, and texts to be scored."""

import itertools
import json
from pathlib import Path

from setblock.data.tasks.word_problems import word_problems

_GENERATE = r"""
task: word_problems_gsm8k
dataset_path: json
dataset_kwargs:
  data_files: {test: PROBLEMS}
output_type: generate_until
test_split: test
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [",", "\\$", "(?s).*#### ", "\\.$"]
generation_kwargs:
  until: ["Question:", "</s>", "<|im_end|>"]
  do_sample: false
  temperature: 0.0
num_fewshot: 0
filter_list:
  - name: strict-match
    filter:
      - function: regex
        regex_pattern: "#### (\\-?[0-9\\.\\,]+)"
      - function: take_first
"""

_CHOOSE = r"""
task: word_problems_choice
dataset_path: json
dataset_kwargs:
  data_files: {test: PROBLEMS}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_choice: ["{{answer}}", "I do not know."]
doc_to_target: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
num_fewshot: 0
"""

_SCORE = r"""
task: word_problems_text
dataset_path: json
dataset_kwargs:
  data_files: {test: PROBLEMS}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "Question: {{question}}\nAnswer: {{answer}}"
metric_list:
  - metric: bits_per_byte
num_fewshot: 0
"""


def write_tasks(folder: Path, *, problems: int) -> Path:
    """A folder of task files over the first problems of the test split."""
    folder.mkdir(exist_ok=True)
    data = folder / "problems.jsonl"
    with data.open("w") as file:
        for problem in itertools.islice(word_problems("test"), problems):
            print(json.dumps({"question": problem.question, "answer": problem.answer}), file=file)
    for number, text in enumerate((_GENERATE, _CHOOSE, _SCORE)):
        (folder / f"{number}.yaml").write_text(text.replace("PROBLEMS", str(data)).lstrip())
    return folder

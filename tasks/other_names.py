"""Ask the included model's word problems with names that it never saw: every name, name for name, and nothing else.

The same problems, sums and sentences as in `word-problems`. What accuracy loses here is what the model learned of its
generator's thirty names, and not of arithmetic.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from setblock.data.tasks import task_named
from setblock.data.tasks.task import Split, Task
from setblock.data.tasks.word_problems import PEOPLE, WordProblem

OTHERS = (
    "Priya Carlos Yuki Amara Dmitri Fatima Bjorn Chloe Desmond Elena Farid Greta Hassan Ingrid Jamal Keiko Lars Mei "
    "Nadia Oscar Petra Quentin Rashid Sofia Tomas Ursula Viktor Wanda Xavier Yasmin"
).split()

_NAMES = dict(zip(PEOPLE, OTHERS, strict=True))


def renamed(text: str) -> str:
    """Return a text with each of the generator's names replaced by another, always the same one."""
    return re.sub(r"\b[A-Z][a-z]+\b", lambda found: _NAMES.get(found[0], found[0]), text)


def _problems(split: Split, seed: int) -> Iterator[WordProblem]:
    for each in task_named("word-problems").examples(split, seed=seed):
        yield replace(each, question=renamed(each.question), answer=renamed(each.answer))


TASKS = (Task("other-names", "word problems with other names", _problems, task_named("word-problems").judge),)

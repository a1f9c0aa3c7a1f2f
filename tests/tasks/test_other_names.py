"""The included model's problems with other names: nothing but the names differs, and none of the generator's is left."""

import re
from itertools import islice

from other_names import OTHERS, TASKS, renamed
from setblock.data.tasks import task_named
from setblock.data.tasks.word_problems import PEOPLE


def test_only_names_differ_and_none_is_left():
    (task,) = TASKS
    own = list(islice(task_named("word-problems").examples("test", seed=3), 200))
    others = list(islice(task.examples("test", seed=3), 200))
    back = dict(zip(OTHERS, PEOPLE, strict=True))
    assert len(back) == len(set(PEOPLE)) == 30
    assert not set(OTHERS) & set(PEOPLE)
    for one, other in zip(own, others, strict=True):
        words = f"{other.question} {other.answer}".replace(".", " ").replace("?", " ").split()
        assert not set(words) & set(PEOPLE)
        assert re.sub("|".join(OTHERS), lambda found: back[found[0]], other.question) == one.question
        assert re.sub("|".join(OTHERS), lambda found: back[found[0]], other.answer) == one.answer
        assert other.number == one.number
    assert task.judge(others[0], others[0].answer).right


def test_a_name_within_a_word_stays():
    assert renamed("Tom pays. Tomorrow Max pays Maxine.") == "Carlos pays. Tomorrow Mei pays Maxine."

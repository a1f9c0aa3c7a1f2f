"""Tasks: one a file."""

from setblock.evaluation.tasks.protocol import Example, Task
from setblock.evaluation.tasks.word_problems import WordProblems

__all__ = ["Example", "Task", "WordProblems"]

import pytest

from setblock.data.tasks.task import near_names, unknown_task

NAMES = [
    "gsm8k",
    "gsm8k_cot",
    "humaneval",
    "humaneval_plus",
    "mbpp",
    "mbpp_plus",
    "aime25",
    "hendrycks_math500",
    "wikitext",
]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("gms8k", "gsm8k"),
        ("GSM8K-COT", "gsm8k_cot"),
        ("humaneval+", "humaneval"),
        ("math500", "hendrycks_math500"),
        ("mbbp", "mbpp"),
    ],
)
def test_the_first_is_what_was_meant(typed, first):
    assert near_names(typed, NAMES)[0] == first


def test_few_are_listed_and_only_near_ones():
    many = [f"mmlu_{number}" for number in range(100)]
    assert len(near_names("mmlu", many)) == 5
    assert near_names("zzz", many) == []
    assert str(unknown_task("zzz", many)) == "there is no task 'zzz'"


def test_all_are_listed_where_they_are_few():
    assert str(unknown_task("nonsense", ["b", "a"])) == "there is no task 'nonsense'; there are a, b"

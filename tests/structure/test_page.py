"""Every command and program of the page on structured output runs."""

import pytest

import test_readme

PAGE = test_readme.blocks(test_readme.ROOT / "docs" / "structured-output.md")


def test_few_blocks_are_left_out():
    assert len([block for block in PAGE if block.not_run]) == 2


@pytest.mark.readme
@pytest.mark.parametrize("block", [b for b in PAGE if b.runs_here], ids=lambda block: f"line {block.line}")
def test_a_block_runs(block):
    test_readme.test_block_runs(block)

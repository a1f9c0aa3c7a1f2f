"""The fixtures of the repository's tests that the plugin's tests use."""

from conftest import _one_thread, prompts, tokenizer, trained_tokenizer  # of tests/

__all__ = ["_one_thread", "prompts", "tokenizer", "trained_tokenizer"]

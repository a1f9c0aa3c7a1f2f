"""Text of a model's own: prompts that it writes, and its answers, for it to learn to decode them in blocks."""

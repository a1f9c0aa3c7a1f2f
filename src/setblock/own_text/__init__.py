"""Let a model write text to learn from: prompts, and its answers, which it learns to decode in blocks."""

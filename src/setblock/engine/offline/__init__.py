"""Answer a file of prompts by the engine."""

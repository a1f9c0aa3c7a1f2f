"""The model: a Hugging Face causal LM, and everything that decoding and training call of it."""

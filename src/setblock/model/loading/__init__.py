"""Find, check and load a checkpoint: folders, hub ids, GGUF files and names."""

"""Choose the documents of a training, pack them into rows, and keep both on disk."""

"""The corpus: the documents of a training, packed into rows, both kept on disk."""

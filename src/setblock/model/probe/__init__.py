"""Try on a small copy of a model how it must be called for its logits to be right."""

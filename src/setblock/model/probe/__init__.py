"""Trials on a small copy of a model that find how it must be called so that its logits are right."""

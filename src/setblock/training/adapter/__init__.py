"""Train an adapter in place of all weights."""

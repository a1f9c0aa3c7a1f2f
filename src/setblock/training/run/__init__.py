"""A training run: from a recipe to a checkpoint with its card, resumed after a stop."""

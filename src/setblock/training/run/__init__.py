"""Take a recipe to a checkpoint with its card, and continue after a stop."""

"""Run one pass of Algorithm 3, in the paper's order: plan, feed, predictions, logits, choice, exact, absorb."""

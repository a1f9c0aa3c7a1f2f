"""Run one pass of Algorithm 3: feed, logits, exact (the check of drafts), policy and choice, absorb."""

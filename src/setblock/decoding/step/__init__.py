"""Run one pass of Algorithm 3: feed, logits, policy and choice, and absorb with the check of drafts."""

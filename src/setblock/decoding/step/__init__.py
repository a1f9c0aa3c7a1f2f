"""One pass of Algorithm 3: its inputs, logits, choice of tokens, and the update of the state with the check of
drafts."""

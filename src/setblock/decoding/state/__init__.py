"""The state of a batch: the tokens that each row has written, committed and revealed."""

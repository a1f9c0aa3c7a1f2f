"""The loss of eq. 14: a forward pass over clean and noisy tokens, and the cross entropy of its outputs."""

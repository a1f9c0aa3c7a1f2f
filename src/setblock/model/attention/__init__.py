"""Choose how attention is called and masked, in decoding and in training."""

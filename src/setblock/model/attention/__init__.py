"""How attention is called and masked, in decoding and in training."""

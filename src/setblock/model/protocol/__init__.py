"""Define all that decoding knows of a model: another runtime has these, and no other part of `model/`."""

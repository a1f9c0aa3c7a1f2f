"""The interface between decoding and a model. Another runtime implements it and needs no other part of `model/`."""

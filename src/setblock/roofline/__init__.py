"""Predictions of the least time of a pass from its operations and memory traffic and a machine's limits (paper, section 4).

The package imports only `setblock.errors`. docs/roofline.md describes the model and what it leaves out.
"""

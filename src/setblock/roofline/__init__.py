"""Predict the least time of a pass from what it computes and moves and what a machine can do (paper, section 4).

Independent: it imports nothing else of this package but its errors. docs/roofline.md describes the model and
what it leaves out.
"""

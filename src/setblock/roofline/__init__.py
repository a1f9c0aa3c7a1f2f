"""Predict the least time of a pass from what it computes and moves and what a machine can do (paper, section 4).

    shape.py                  a decoder's sizes, from its config
    cost.py                   the operations of a pass, with their arithmetic and bytes
    hardware.py               data sheets
    prediction.py             the time of a pass, eq. 16, and the paper's tables 3 and 4

Independent: it imports nothing else of this package but its errors. docs/roofline.md describes the model and
what it leaves out.
"""

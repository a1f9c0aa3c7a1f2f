"""Drafts of method `exact`: how long they are (`draft_length`), and copies of the text as drafts (`lookup`).

The check of drafts is in `setblock.decoding.step.update`.
"""

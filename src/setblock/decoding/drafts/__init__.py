"""Decide before each pass how much each row of method `exact` drafts, by what a pass costs and how often drafts are right.

The check of drafts is in `setblock.decoding.step.absorb`.
"""

"""Adapters that act on the future block only."""

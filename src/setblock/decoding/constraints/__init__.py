"""Accompany rows: grammars, listeners, and how they restrict what may come next."""

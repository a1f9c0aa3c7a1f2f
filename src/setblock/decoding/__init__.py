"""Decode in blocks: `generate` (a string, a stream, steps), `rows` (requests together), and a room for each part of it."""

"""Decoding in blocks: `generate` (a string, a stream, steps), `batch` (requests together), and a package per part."""

"""Chats: reading them, writing them by a chat template, and encoding them, the same for training, decoding and the
server."""

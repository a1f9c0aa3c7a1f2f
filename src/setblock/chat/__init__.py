"""Read chats, write them by a chat template, and encode them, the same for training, decoding and the server."""

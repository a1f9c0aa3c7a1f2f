"""What callers get: the text, the outputs of each pass by row, and finished answers."""

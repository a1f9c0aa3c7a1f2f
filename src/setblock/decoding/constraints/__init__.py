"""Constraints: objects that follow a row's tokens, such as a grammar or the text, and may restrict the next ones."""

"""Report to people what passes did: text, news of each pass, finished answers."""

"""Report what passes did to people: text, news of each pass, finished answers."""

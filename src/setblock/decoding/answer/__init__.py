"""Report what passes did to people: text, events, records, finished answers."""

"""Let an adapter act on the future block only."""

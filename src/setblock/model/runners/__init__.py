"""Run passes: of rows that stay together, and of rows that come and go, each with its cache."""

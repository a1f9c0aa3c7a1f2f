"""The runners of forward passes, each with its cache: for rows that stay together, and for rows that come and go."""

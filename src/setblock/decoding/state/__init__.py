"""Hold what is written, committed and revealed in each row of a batch, from its opening on."""

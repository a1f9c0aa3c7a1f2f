"""Store weights in other forms: quantised, laid out for a CPU, as a small delta."""

"""The inputs of a training step, made from packed rows: noise (eq. 13), then clean and noisy tokens side by side."""

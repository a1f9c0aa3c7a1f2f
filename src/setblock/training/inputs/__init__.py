"""Make what a training step feeds from packed rows: noise (eq. 13), then clean and noisy tokens side by side."""

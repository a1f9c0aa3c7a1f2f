"""The training loop: the Trainer, its optimizer, its sharding over devices, and its logs."""

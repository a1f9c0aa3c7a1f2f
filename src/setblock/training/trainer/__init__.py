"""Run the steps: the Trainer, its optimizer, how it is spread over devices, and what it logs."""

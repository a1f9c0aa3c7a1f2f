"""Define the command line. Nothing here imports PyTorch before a command runs."""

"""Define the command line: one command a file. Nothing here imports PyTorch before a command runs."""

"""The command line. No module here imports PyTorch before a command runs."""

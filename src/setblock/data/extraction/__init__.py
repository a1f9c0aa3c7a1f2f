"""Write messages with their records, for the task `extraction`. A kind of message is a file of `kinds/`."""

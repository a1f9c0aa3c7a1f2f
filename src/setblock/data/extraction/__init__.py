"""Messages with their records: what the task `extraction` asks. A kind of message is a file of `kinds/`."""

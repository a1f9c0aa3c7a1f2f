"""Say what a request may ask: the table of settings, its checks, calibrated points, and what becomes a row's terms."""

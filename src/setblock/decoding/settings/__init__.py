"""The settings of a request: their table, checks and calibrated operating points, and the parameters of a row."""

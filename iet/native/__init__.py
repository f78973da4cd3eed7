"""Arrays in, arrays out: compiled modules and their NumPy twin. Knows no agent and no file."""

"""Pure values and decisions: no I/O, no clock, no environment. Values in, values out; tests need no temp file."""

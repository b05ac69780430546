"""Pure values and decisions: no I/O, no clock, no environment. Values in, values out; no test of a decision needs a temp file."""

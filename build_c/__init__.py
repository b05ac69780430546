"""Compiles the C parts of product and simulator."""

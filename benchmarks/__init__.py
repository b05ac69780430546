"""Benchmarks: each module is one of `scripts/bench NAME`."""

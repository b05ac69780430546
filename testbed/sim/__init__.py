"""Simulated GPUs for single processes."""

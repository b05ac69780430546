"""gpu-hook: containers share one NVIDIA GPU by annotations. Imports nothing: this file runs on the hot path."""

__version__ = "0.1.0"

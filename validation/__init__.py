"""The runs of scripts/gpu-validate."""

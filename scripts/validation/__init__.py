"""What scripts/gpu-validate runs."""

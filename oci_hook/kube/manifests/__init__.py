"""Rewrites Kubernetes manifests as text (`gpu-hook translate`), without a cluster."""

"""Rewrites Kubernetes manifests, as text. Nothing here talks to a cluster."""

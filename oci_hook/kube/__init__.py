"""Kubernetes objects as text and as data; nothing here talks to a cluster."""

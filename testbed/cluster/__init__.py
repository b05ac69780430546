"""A Kubernetes cluster of several nodes on this machine, for development and tests: scripts/cluster."""

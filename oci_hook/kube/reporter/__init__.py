"""Reports the node's GPUs and grants to the API server, and brings the cluster's settings and keys to the node.

It is a child process of `gpu-hook agent`, unless the setting `cluster` is off. It writes only to its own Node object, and only
changes. No container waits for it, so the node works on without an API server.
"""

"""The node's side of the API server: tells the cluster what the node has and who holds it, and the node what the cluster says.

A child process of `gpu-hook agent` where the setting `cluster` is not off. It writes to its own Node object only, and nothing
while nothing changes. No container waits for it: without an API server everything on the node goes on.
"""

"""One pod: its GPU requests, in any dialect, and the nodes that may have it. Nothing here knows the cluster's GPUs."""

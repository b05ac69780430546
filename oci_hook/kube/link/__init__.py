"""The way to the API server for the node's two programs and for commands: kubeconfigs, a client, watches, and the loop of a program."""

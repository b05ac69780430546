"""Tells what the agent knows: page, metrics, events, systemd. Nothing here changes the node."""

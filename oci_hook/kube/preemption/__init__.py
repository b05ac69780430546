"""The choice of preemption's victims, and of nodes that mislead a scheduler. Pure."""

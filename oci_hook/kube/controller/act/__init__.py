"""The leader's own writes to the cluster: evictions, taints, preemption, wake-ups. Each is bounded."""

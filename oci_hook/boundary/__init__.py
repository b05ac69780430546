"""The driver's own memory limits per cgroup (R615 and later): set at a container's start, changed, read, cleared."""

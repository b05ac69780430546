"""Plans, carried out: edits of a config.json (to_spec) or changes of a live container (to_container, to_cgroup)."""

"""Who holds what on this node's GPUs: grants, what they live by, admission, and what containers are told."""

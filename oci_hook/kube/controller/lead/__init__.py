"""Leader election among the controllers, and a new leader's takeover."""

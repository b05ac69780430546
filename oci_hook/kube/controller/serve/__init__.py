"""Serves webhooks, the scheduler's extender, keys, metrics and the page. Bounds every request; answers/ decides."""

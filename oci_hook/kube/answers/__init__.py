"""Answers to the API server, the scheduler and people, each in its own format. Pure."""

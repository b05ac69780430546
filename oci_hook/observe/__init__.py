"""Containers that run, as the host sees them: account pages, processes, orphans."""

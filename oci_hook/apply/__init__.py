"""The hands: a Plan in, a container changed."""

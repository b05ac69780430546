"""Certificates, tokens and keys: authenticates callers, and us to them."""

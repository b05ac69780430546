"""Calls to the API server: requests, lists, watches. Decides nothing about pods."""

"""The settings of an install."""

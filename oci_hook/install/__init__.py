"""Whose a directory is: state directories and the installs that own them."""

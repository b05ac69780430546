"""An install's own files: its settings, and the state directory that it owns."""

"""An install: the files that it consists of, its settings as people edit them, and the state directory that it owns."""

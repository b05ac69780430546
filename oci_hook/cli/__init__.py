"""The command line: a file per command, loaded when it is called. The only layer that prints and uses click."""

"""The command line: click, a file per command, loaded lazily. The only floor that prints."""

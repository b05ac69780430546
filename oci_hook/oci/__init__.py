"""The OCI runtime's own formats: config.json, the state document, the runtime's command line."""

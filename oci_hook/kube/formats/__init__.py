"""Values and their text, exchanged by nodes, controllers and the API server. Adjacent versions read each other's text."""

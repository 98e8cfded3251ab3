"""Tools that build, check and feed the project; nothing here runs in production."""

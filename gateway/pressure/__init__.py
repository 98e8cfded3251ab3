"""When there is too much of everything."""

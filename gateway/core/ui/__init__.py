"""Content of the page for each caller. Pure."""

"""What the page shows, to whom. Pure."""

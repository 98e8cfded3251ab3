"""What endpoints of every dialect are made of: request, response, stream, errors, the table of routes."""

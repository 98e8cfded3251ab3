"""Parts of an endpoint in every dialect: request, response, stream, errors, the table of routes."""

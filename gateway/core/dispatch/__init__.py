"""Order of requests, choice of their replica, and refusals. Pure."""

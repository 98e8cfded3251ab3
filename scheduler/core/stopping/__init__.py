"""Stops of replicas, and the return of their memory."""

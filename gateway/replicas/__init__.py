"""Choice of a replica for each request, and the queues of those that wait."""

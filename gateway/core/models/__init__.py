"""Models and their replicas, as a gateway knows them. Pure."""

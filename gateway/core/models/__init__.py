"""What a gateway knows about models and their replicas. Pure."""

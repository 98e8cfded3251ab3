"""How replicas go, and how their memory is seen to come back."""

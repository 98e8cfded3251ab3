"""Desired number and place of replicas, compared with the existing ones."""

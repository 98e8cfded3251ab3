"""Stores of models, first nodes, and scrape targets."""

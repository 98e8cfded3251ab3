"""The inventory: which nodes exist, what devices, models and runners they have."""

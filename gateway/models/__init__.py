"""What there is: models, their stores, nodes."""

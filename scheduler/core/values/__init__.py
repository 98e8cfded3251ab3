"""What decisions are about: nodes, devices, models, layouts, wishes. Values only."""

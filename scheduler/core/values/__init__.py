"""Values of decisions: nodes, devices, models, layouts, options."""

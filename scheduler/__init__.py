"""Service that places models on nodes and publishes the routes to gateways."""

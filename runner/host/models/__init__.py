"""List of the models of the node, as it scans and reports them."""

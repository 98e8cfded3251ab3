"""Connections and the outermost layer, before any endpoint."""

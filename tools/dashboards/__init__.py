"""Grafana's dashboards, written as JSON from short descriptions: `python -m tools.dashboards`."""

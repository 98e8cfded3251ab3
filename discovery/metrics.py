"""What discovery counts."""

from prometheus_client import Counter, Gauge

NODES = Gauge("puna_discovery_nodes_count", "Nodes in the inventory", ["state"])
WATCHERS = Gauge("puna_discovery_watchers_count", "Open WatchInventory streams")
REPORTS = Counter("puna_discovery_reports_total", "Reports of hosts by result", ["result"])
VERSION = Gauge("puna_discovery_inventory_version_count", "Version of the inventory")

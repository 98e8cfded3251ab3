"""Metrics of discovery."""

from prometheus_client import Counter, Gauge

from common.telemetry.device_metrics import DeviceGauges
from common.telemetry.metrics import Family, ScrapedGauges

NODES = Gauge("puna_discovery_nodes", "Nodes in the inventory", ["state"])
WATCHERS = Gauge("puna_discovery_watchers", "Open WatchInventory streams")
REPORTS = Counter("puna_discovery_reports_total", "Reports of hosts by result", ["result"])
SKIPPED_ROWS = Counter(
    "puna_discovery_skipped_rows_total",
    "Rows of hosts' reports that could not be taken, by table: devices, models, runners; the log has row.skipped",
    ["table"],
)
for _table in ("devices", "models", "runners"):
    SKIPPED_ROWS.labels(table=_table)
JOINS = Counter("puna_discovery_joins_total", "Attempts of machines to join with a token, by result", ["result"])
for _result in ("admitted", "refused"):
    JOINS.labels(result=_result)
VERSION = Gauge("puna_discovery_inventory_version", "Version of the inventory; grows with every change")
DEVICES = DeviceGauges("puna_discovery", ["node", "device"])
REPORT_AGE = Family("puna_discovery_node_report_age_seconds", "Age of a node's last report", ("node",))
NODE_GAUGES = ScrapedGauges((REPORT_AGE,))

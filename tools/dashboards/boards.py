"""Content of the three boards."""

from tools.dashboards.fleet import FLEET
from tools.dashboards.model import MODEL
from tools.dashboards.node import NODE

BOARDS = (FLEET, MODEL, NODE)

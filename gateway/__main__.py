"""`python -m gateway`."""

import sys

from common.service import run_service
from gateway.app import serve
from gateway.settings import GatewaySettings

sys.exit(run_service("gateway", GatewaySettings, serve))

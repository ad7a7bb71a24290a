"""Serving without a cluster. Ray is imported, and reads these when it is."""

from __future__ import annotations

import os

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

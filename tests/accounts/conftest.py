"""A minute of processes: collected for `make accounts` alone."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("GEORELAY_ACCOUNTS") else ["test_*.py"]

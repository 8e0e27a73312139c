"""The SLA tab of Locust's page: its documented extended tab and table, and rows beside the statistics that it asks for.

Rule: everything goes there as JSON; the page makes text of it, never markup, and asks nobody but this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from flask import Response, request
from locust.web import WebUI

from loadtest.load.live_core import COLUMNS, Row

KEY: Final = "sla"
STATISTICS: Final = "/stats/requests"


def add_sla_tab(web_ui: WebUI, rows: Callable[[], list[Row]]) -> None:
    """Add the tab; `rows` is called whenever the page asks for statistics, every two seconds."""
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args["extended_tabs"] = [{"title": "SLA", "key": KEY}]
    web_ui.template_args["extended_tables"] = [{"key": KEY, "structure": structure}]

    def with_rows(response: Response) -> Response:
        if request.path.endswith(STATISTICS) and response.is_json and response.status_code == 200:
            document: dict[str, Any] = json.loads(response.get_data())
            document["extended_stats"] = [{"key": KEY, "data": rows()}]
            response.set_data(json.dumps(document))
        return response

    assert web_ui.app is not None, "made in its constructor"
    web_ui.app.after_request(with_rows)

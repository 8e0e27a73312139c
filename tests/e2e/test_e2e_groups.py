"""One short run of groups on real processes: members are killed, join and leave, and brokers are killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.test_e2e_chaos import CAMPAIGN, FAULT
from tests.e2e.test_e2e_load import georelay

MEMBERS = '[[programs]]\nkind = "group-member"\ntopics = ["orders"]\nclient = "{client}"\ncount = 3\n'
STEPS = ((6, "kill-client"), (11, "client-joins"), (18, "client-leaves"))


@pytest.mark.slow
def test_groups_process_everything_while_members_and_coordinators_come_and_go(tmp_path: Path) -> None:
    clients = ("confluent-kafka", "sdk")
    file = tmp_path / "groups.toml"
    faults = [FAULT.format(at=at, do=do, what=client) for client in clients for at, do in STEPS]
    faults += [FAULT.format(at=14, do="kill", what="any of us")]
    text = CAMPAIGN.replace('for = "16s"', 'for = "24s"').replace("partitions = 2", "partitions = 12")
    file.write_text(text + "".join([*(MEMBERS.format(client=client) for client in clients), *faults]))
    done = georelay("run", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    lines = [json.loads(row) for row in (folder / "programs.jsonl").read_text().splitlines()]
    assert {line["what"] for line in lines} == {f"group {client}" for client in clients}
    for line in lines:
        assert line["kept"], line
        (generations,) = re.findall(r"(\d+) generations", line["found"])
        assert int(generations) >= 3

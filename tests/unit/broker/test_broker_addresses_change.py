"""Everybody's addresses change while everybody is down, as in containers: the disks' brokers find each other again."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest


@pytest.mark.parametrize("mesh", [{"us": 3}, {"us": 1, "eu": 1, "ap": 1}], ids=["region", "mesh"], indirect=True)
async def test_brokers_whose_addresses_all_changed_find_each_other_and_all_records(mesh: Any, until: Any) -> None:
    await mesh.start()
    await mesh.create_topic()
    values = (b"before", b"elsewhere", b"where another one was")
    await mesh.publish(values[0])
    await mesh.has_everywhere(values[0])
    for stored, change in ((2, mesh.move), (3, mesh.swap)):
        await mesh.stop()
        change()
        await mesh.start()
        await mesh.publish(values[stored - 1])
        await mesh.has_everywhere(*islice(values, stored))
    await until(mesh.control_has_moved)

"""Which home epochs a client may come with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from georelay.wire.api import ErrorCode
from region.kafka.handlers.positions import epoch_error


@pytest.mark.parametrize(
    ("client", "code"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.NONE),  # librdkafka that read -1 in Metadata; it would fetch nothing for ever otherwise
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_only_a_known_and_other_epoch_is_refused(client: int, code: ErrorCode) -> None:
    assert epoch_error(cast("Any", SimpleNamespace(epoch=2)), client) is code

"""Seeds that once failed, and what they found. A changed simulator gives other worlds: then they are only more seeds.

What found something for certain is a unit test beside the code it found it in.
"""

from __future__ import annotations

from typing import Final

MESH: Final[dict[int, str]] = {
    311: "a broker on an empty disk voted for candidates without what it had acknowledged",
    308: "a broker on a new disk was heard as the voter that had the old one",
    319: "an empty disk was counted for a quorum before the group had removed the old one",
    110: "a vote that was lost with its disk was given again in the same term",
}
REGION: Final[dict[int, str]] = {
    7: "after a failed sync, pages that were kept as clean were counted as durable by the next process",
    26: "the same, behind a kill",
    45: "the same, behind a power cut",
    25: "a failed sync while a log is opened has that group refused, and the broker goes on",
}

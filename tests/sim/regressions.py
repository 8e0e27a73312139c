"""Seeds that once failed, and what they found. A changed simulator gives other worlds: then they are only more seeds.

What found something for certain is a unit test beside the code it found it in.
"""

from __future__ import annotations

from typing import Final

MESH: Final[dict[int, str]] = {
    311: "a broker on an empty disk voted for candidates without what it had acknowledged",
    308: "the controller's leader still counted on what a replaced disk had held",
    319: "the same, in another region",
    110: "a broker on a new disk was heard as the voter that had the old one, and stopped its group",
}
REGION: Final[dict[int, str]] = {
    7: "after a failed sync, pages that were kept as clean were counted as durable by the next process",
    26: "the same",
    45: "the same",
    25: "a failed sync of a file that was only staged: a false alarm of the simulator",
    30299: "a sealed segment with an unreadable sector had its group refused at the start, not fetched again",
}

"""Seeds that once failed, and what they found. A changed simulator gives other worlds: then they are only more seeds.

What found something for certain is a unit test beside the code it found it in.
"""

from __future__ import annotations

from typing import Final

MESH: Final[dict[int, str]] = {
    311: "a broker on an empty disk voted for candidates without what it had acknowledged",
    308: "the controller's leader still counted on what a replaced disk had held",
    319: "the same, in another region",
    200060: "replicas of a deleted topic remove it one after the other: a false alarm of the simulator",
    200110: "a new replica refused a pre-vote in term 0, which made its peer close the connection of all groups",
    200140: "who waited for the last nanosecond of a fast clock waited for ever: an artefact of the simulator",
    300027: "who lost its disk in a region at feature level 1 gave up instead of waiting for the upgrade",
    300043: "the folder of a group whose first segment had no room was lost with the power, and what was in it",
    300192: "an acknowledgement that arrived after its disk was replaced: a false alarm of the simulator",
    700239: "a leader that had stepped down was still taken for one by itself: it refused to recover",
    700294: "a recovery was refused because the last one that was asked for a leader had no time to answer",
    720221: "a learner never heard that its leader had stepped down: it refused to recover",
    720364: "who recovered before control had heard of its disk was made again under the same number, on an empty log",
    1001: "a recovery was refused for ever where the region's replica had never held the state, though it was pulled",
    1000052: "a sync failed while the folder of a control replica was made: the broker went on, and made it again",
    950335: "control had voters of which it had told nobody when their disks were lost: nobody thought of a recovery",
    110: "a broker on a new disk was heard as the voter that had the old one, and stopped its group",
}
REGION: Final[dict[int, str]] = {
    7: "after a failed sync, pages that were kept as clean were counted as durable by the next process",
    26: "the same",
    45: "the same",
    25: "a failed sync of a file that was only staged: a false alarm of the simulator",
    600716: "the mark of an idle group was never synced: its damaged entry passed for a torn tail after a power cut",
    642371: "the mark of a log that was cut as damaged became unreadable itself: the loss was forgotten, and it voted",
    30299: "a sealed segment with an unreadable sector had its group refused at the start, not fetched again",
    700289: "an entry journal that was made anew was taken for the one before: a false alarm of the simulator",
    740038: "a log that met an unreadable sector while it was cut stopped its group, and no controller made it anew",
    913026: "the mark of a log that was longer than it was not synced at the start: less than it had lost was missed",
    904451: "the file of marks grew without a sync: a power cut left half a row beside a torn log, which was refused",
}
COORDINATOR: Final[dict[int, str]] = {
    301097: "a replica whose disk does not give its log back was asked for its state: an error of the simulator",
}

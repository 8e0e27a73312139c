"""The topic of a queue under the name that it has in this region.

A queue names its topic as its own region does. Where the region that serves it is another one, the plain name of a
topic with homes=every means that other region's stream; the queue goes on with the stream that it began with, which has
its qualified name in every region. Dead letters are written to the plain name: a region writes its own streams only.
"""

from __future__ import annotations

from georelay.ids import RegionNumber
from region.controller.topic import Homes
from region.kafka.ports import TopicView
from region.queues.ports import QueueCluster


def local_view(cluster: QueueCluster, topic: str, *, origin: RegionNumber) -> TopicView | None:
    """Return what clients of the region `origin` call `topic`, None where this region does not know it."""
    view = cluster.topic(topic)
    if view is None or origin == cluster.region_number or view.homes is Homes.ONE or view.is_mirror_name:
        return view
    views = (cluster.topic(name) for name in cluster.stream_names(topic))
    return next((row for row in views if row is not None and row.name != topic and row.origin == origin), None)

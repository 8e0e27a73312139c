"""What HTTP and gRPC ask before they touch a topic."""

from __future__ import annotations

from georelay.errors import UnknownTopic
from georelay.limits import TOPIC_NAME_CHARS_MAX
from region.kafka.ports import Cluster, TopicView
from region.security.access import Access, Operation, Principal, Resource


def check_topic(access: Access, cluster: Cluster, principal: Principal, operation: Operation, name: str) -> None:
    """Pass if the operation is allowed, and the creation too where the topic is unknown and would be made.

    Raises:
        AccessDenied: the same whether the topic exists or not.
    """
    access.check(principal, operation, Resource.TOPIC, name)
    if cluster.auto_create_topics and cluster.topic(name) is None:
        access.check_create_topic(principal, name)


def existing_topic(cluster: Cluster, name: str) -> TopicView:
    """Return a topic for who only reads it (UnknownTopic): reading creates none."""
    view = cluster.topic(name)
    if view is None:
        raise UnknownTopic(f"topic {name[:TOPIC_NAME_CHARS_MAX]!r} does not exist")
    return view

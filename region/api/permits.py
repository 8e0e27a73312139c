"""What HTTP and gRPC ask before they touch a topic."""

from __future__ import annotations

from region.kafka.ports import Cluster
from region.security.access import Access, Operation, Principal, Resource


def check_topic(access: Access, cluster: Cluster, principal: Principal, operation: Operation, name: str) -> None:
    """Pass if the operation is allowed, and the creation too where the topic is unknown and would be made.

    Raises:
        AccessDenied: the same whether the topic exists or not.
    """
    access.check(principal, operation, Resource.TOPIC, name)
    if cluster.auto_create_topics and cluster.topic(name) is None:
        access.check_create_topic(principal, name)

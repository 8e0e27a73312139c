"""What a broker tells its region about itself: its disk, where it listens, and what it can read.

Rule: the fields that came with feature level 2 are left out of the JSON at their default, so that a registration at
level 1 has the bytes that a broker of the first version reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from georelay.fields import Fields, JsonObject
from georelay.ids import BrokerId
from region.controller.topology import BROKER_ID_MAX

ADDRESS_CHARS_MAX: Final = 300
HOST_CHARS_MAX: Final = 255
DISK_UUID_CHARS_MAX: Final = 64
FEATURE_LEVEL_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """One broker of this region.

    Args:
        broker: its mesh-wide id.
        disk_uuid: made once with the data directory; a broker id never changes disks unseen, because
            an empty disk that votes under an old id can lose what was committed.
        kafka_host, kafka_port: what Metadata answers.
        grpc, link, admin: addresses as "host:port".
        peers: "host:port" of its peer listener, "" when it did not say.
        feature_level_max: the highest feature level this broker can read and write.
    """

    broker: BrokerId
    disk_uuid: str
    kafka_host: str
    kafka_port: int
    grpc: str
    link: str
    admin: str
    peers: str = ""
    feature_level_max: int = 1

    def at_level(self, level: int) -> BrokerRegistration:
        """Return what a region of that feature level may record: at level 1 without the fields of level 2."""
        return self if level >= 2 else replace(self, peers="", feature_level_max=1)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        said: JsonObject = {
            "broker": self.broker,
            "disk_uuid": self.disk_uuid,
            "kafka_host": self.kafka_host,
            "kafka_port": self.kafka_port,
            "grpc": self.grpc,
            "link": self.link,
            "admin": self.admin,
        }
        if self.peers:
            said["peers"] = self.peers
        if self.feature_level_max != 1:
            said["feature_level_max"] = self.feature_level_max
        return said

    @classmethod
    def from_json(cls, value: object) -> BrokerRegistration:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "registration")
        registration = cls(
            broker=BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX)),
            disk_uuid=fields.text("disk_uuid", chars_min=1, chars_max=DISK_UUID_CHARS_MAX),
            kafka_host=fields.text("kafka_host", chars_min=1, chars_max=HOST_CHARS_MAX),
            kafka_port=fields.integer("kafka_port", low=1, high=65_535),
            grpc=fields.text("grpc", chars_max=ADDRESS_CHARS_MAX),
            link=fields.text("link", chars_max=ADDRESS_CHARS_MAX),
            admin=fields.text("admin", chars_max=ADDRESS_CHARS_MAX),
            peers=fields.text("peers", chars_min=1, chars_max=ADDRESS_CHARS_MAX) if fields.has("peers") else "",
            feature_level_max=(
                fields.integer("feature_level_max", low=2, high=FEATURE_LEVEL_MAX)
                if fields.has("feature_level_max")
                else 1
            ),
        )
        fields.done()
        return registration

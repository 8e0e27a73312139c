"""What a broker tells its region about itself: its disk and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from georelay.ids import BrokerId
from region.controller.fields import Fields, JsonObject
from region.controller.topology import BROKER_ID_MAX

ADDRESS_CHARS_MAX: Final = 300
HOST_CHARS_MAX: Final = 255
DISK_UUID_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """One broker of this region.

    Args:
        broker: its mesh-wide id.
        disk_uuid: made once with the data directory; a broker id never changes disks unseen, because
            an empty disk that votes under an old id can lose what was committed.
        kafka_host, kafka_port: what Metadata answers.
        grpc, link, admin: addresses as "host:port".
    """

    broker: BrokerId
    disk_uuid: str
    kafka_host: str
    kafka_port: int
    grpc: str
    link: str
    admin: str

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "broker": self.broker,
            "disk_uuid": self.disk_uuid,
            "kafka_host": self.kafka_host,
            "kafka_port": self.kafka_port,
            "grpc": self.grpc,
            "link": self.link,
            "admin": self.admin,
        }

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
        )
        fields.done()
        return registration

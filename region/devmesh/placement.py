"""Where the processes of a mesh run in a WAN test bed: each broker in its region, the gateway in the hub."""

from __future__ import annotations

from georelay.errors import ConfigError
from mesh.testbed.bed_process import BedProcess
from region.devmesh.plan_core import Hosts, MeshRecord


def hosts_in(bed: BedProcess, record: MeshRecord) -> Hosts:
    """Return the addresses of a mesh's processes: broker k of a region has its region's address k.

    Raises:
        ConfigError: the bed has not the mesh's regions, or too few addresses.
    """
    if record.brokers_per_region > bed.plan.addresses:
        raise ConfigError(
            f"the test bed has {bed.plan.addresses} addresses per region, not {record.brokers_per_region}"
        )
    return Hosts(
        gateway=bed.plan.hub_address,
        brokers={
            (name, number): bed.plan.region(name).wan(number)
            for name, _ in record.regions
            for number in range(1, record.brokers_per_region + 1)
        },
    )

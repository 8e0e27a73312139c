"""Writes regions.tf.json from regions.toml: Terraform cannot make provider, module and peering blocks of a list.

Rule 1: nothing but the standard library, so that it runs wherever Terraform does.
Rule 2: what AWS or the mesh would refuse later is refused here, in one line that says what to write instead.
Rule 3: a region leaves in two steps, retired and then deleted: Terraform destroys by the provider block that made.
Rule 4: what never changes (number, CIDR, mesh, global_region) is held against what was rendered before.
"""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import itertools
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
RENDERED: Final = "regions.tf.json"
AWS_REGIONS: Final = (
    *("af-south-1", "ap-east-1", "ap-east-2", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1"),
    *("ap-south-2", "ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5"),
    *("ap-southeast-6", "ap-southeast-7", "ca-central-1", "ca-west-1", "eu-central-1", "eu-central-2", "eu-north-1"),
    *("eu-south-1", "eu-south-2", "eu-west-1", "eu-west-2", "eu-west-3", "il-central-1", "me-central-1"),
    *("me-south-1", "mx-central-1", "sa-east-1", "us-east-1", "us-east-2", "us-west-1", "us-west-2"),
)
PRIVATE: Final = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
PREFIX_MIN, PREFIX_MAX = 16, 20
REGIONS_MAX: Final = 10  # a security group holds 60 rules: four for each region, and those of the region itself
HOSTS_MAX: Final = 9
NUMBER_MAX: Final = 32_767
MESH: Final = re.compile(r"[a-z][a-z0-9-]{0,18}[a-z0-9]")
IMAGE: Final = re.compile(r"ami-[0-9a-f]{8,17}")
STATES: Final = ("active", "retired")
KEYS: Final = ("name", "number", "cidr", "brokers", "gateways", "state", "zones", "image")
ZONES: Final = 3


class RegionsRefused(Exception):
    """The file cannot be rendered; the text is the one line for who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One [[regions]] table, checked."""

    name: str
    number: int
    cidr: ipaddress.IPv4Network
    brokers: int = 3
    gateways: int = 2
    state: str = "active"
    zones: tuple[str, ...] = ()
    image: str = ""

    @property
    def label(self) -> str:
        """Return the name as Terraform writes it: eu_west_1."""
        return self.name.replace("-", "_")

    @property
    def is_active(self) -> bool:
        """Return whether the region has hosts."""
        return self.state == "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The whole file, checked."""

    name: str
    global_region: str
    regions: tuple[Region, ...]

    @property
    def active(self) -> tuple[Region, ...]:
        """Return the regions that have hosts, in the order of the file."""
        return tuple(region for region in self.regions if region.is_active)


def parse(text: str) -> Mesh:
    """Return what regions.toml says.

    Raises:
        RegionsRefused: one line that says what to write instead.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RegionsRefused(f"it is no TOML: {error}") from error
    _known(document, ("mesh", "global_region", "regions"), "the file")
    name = document.get("mesh")
    if not isinstance(name, str) or MESH.fullmatch(name) is None or "--" in name:
        raise RegionsRefused('mesh: write 2 to 20 of a-z, 0-9 and single "-", a letter first, such as mesh = "shop"')
    tables = document.get("regions")
    if not isinstance(tables, list) or not tables:
        raise RegionsRefused("regions: write at least one [[regions]] table with name, number and cidr")
    mesh = Mesh(
        name=name,
        global_region=_aws_region(document.get("global_region"), "global_region"),
        regions=tuple(_region(table) for table in tables),
    )
    _agree(mesh.regions)
    if not mesh.active:
        raise RegionsRefused("every region is retired: keep one, or end the mesh with terraform destroy")
    if len(mesh.active) > REGIONS_MAX:
        raise RegionsRefused(f"{len(mesh.active)} active regions: at most {REGIONS_MAX} fit into the security groups")
    return mesh


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise RegionsRefused(f"{where}: {key!r} is no key{_like(key, keys)}; known are {', '.join(keys)}")


def _like(word: object, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(word), words, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _aws_region(name: object, where: str) -> str:
    if not isinstance(name, str) or name not in AWS_REGIONS:
        raise RegionsRefused(
            f"{where}: {name!r} is no region of AWS{_like(name, AWS_REGIONS)}; write one such as eu-west-1. "
            "One that is new is added to AWS_REGIONS in render.py"
        )
    return name


def _region(table: object) -> Region:
    if not isinstance(table, dict):
        raise RegionsRefused("regions: write each region as a table of its own, below [[regions]]")
    name = _aws_region(table.get("name"), "name")
    _known(table, KEYS, name)
    zones, image = table.get("zones", []), table.get("image", "")
    if not isinstance(zones, list) or (zones and not _are_letters(zones)):
        raise RegionsRefused(f'{name}: zones: write the letters of three zones, such as ["a", "b", "d"], not {zones}')
    if not isinstance(image, str) or (image and IMAGE.fullmatch(image) is None):
        raise RegionsRefused(f'{name}: image: write an AMI such as "ami-0123456789abcdef0", not {image!r}')
    brokers = _count(table, "brokers", 3, HOSTS_MAX, name)
    if brokers % 2 == 0:
        raise RegionsRefused(
            f"{name}: brokers = {brokers}: write an odd number, such as {brokers - 1} or {brokers + 1}; "
            "a majority of an even number bears no more losses"
        )
    if table.get("state", "active") not in STATES:
        raise RegionsRefused(f'{name}: state: write "active" or "retired", not {table["state"]!r}')
    return Region(
        name=name,
        number=_count(table, "number", None, NUMBER_MAX, name),
        cidr=_network(table.get("cidr"), name),
        brokers=brokers,
        gateways=_count(table, "gateways", 2, HOSTS_MAX, name),
        state=table.get("state", "active"),
        zones=tuple(zones),
        image=image,
    )


def _are_letters(zones: list[object]) -> bool:
    return len(set(map(str, zones))) == len(zones) == ZONES and all(
        isinstance(zone, str) and re.fullmatch("[a-z]", zone) for zone in zones
    )


def _count(table: Mapping[str, Any], key: str, default: int | None, most: int, name: str) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RegionsRefused(f"{name}: {key}: write a whole number, 1 to {most}, not {value!r}")
    return value


def _network(text: object, name: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text) if isinstance(text, str) else None
    except ValueError as error:
        raise RegionsRefused(f"{name}: cidr: {error}; write a network such as 10.40.0.0/16") from error
    if network is None or not PREFIX_MIN <= network.prefixlen <= PREFIX_MAX:
        raise RegionsRefused(f"{name}: cidr: write a network of /16 to /20, such as 10.40.0.0/16, not {text!r}")
    if not any(network.subnet_of(private) for private in PRIVATE):
        raise RegionsRefused(
            f"{name}: cidr: {network} is not private; write one of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
        )
    return network


def _agree(regions: Sequence[Region]) -> None:
    for one, other in itertools.combinations(regions, 2):
        if one.name == other.name:
            raise RegionsRefused(f"{one.name} has two tables; a region of AWS is one region of the mesh")
        if one.number == other.number:
            free = max(region.number for region in regions) + 1
            raise RegionsRefused(f"{one.name} and {other.name} have number {one.number}; give {other.name} {free}")
        if one.cidr.overlaps(other.cidr):
            raise RegionsRefused(
                f"{one.name} ({one.cidr}) and {other.name} ({other.cidr}) overlap; "
                f"give {other.name} {_free_network(regions)}: networks that are joined share no address"
            )


def _free_network(regions: Sequence[Region]) -> ipaddress.IPv4Network:
    tens = (ipaddress.IPv4Network(f"10.{second}.0.0/16") for second in range(10, 256, 10))
    return next(network for network in tens if not any(network.overlaps(region.cidr) for region in regions))


def follows(mesh: Mesh, rendered: Mapping[str, Any]) -> None:
    """Refuse what would destroy or rename what the rendered file before has made.

    Raises:
        RegionsRefused: one line that says what to write instead.
    """
    before = rendered["locals"]
    for key, now in (("mesh", mesh.name), ("global_region", mesh.global_region)):
        if before[key] != now:
            raise RegionsRefused(f'{key} was "{before[key]}" and never changes; another mesh is another folder')
    regions = {region.name: region for region in mesh.regions}
    for name, row in before["regions"].items():
        region = regions.get(name)
        if region is None and row["state"] == "active":
            raise RegionsRefused(
                f'{name} was active: write state = "retired", render and apply; delete the table after that'
            )
        if region is None:
            continue
        if region.number != row["number"]:
            raise RegionsRefused(f"{name}: number was {row['number']} and never changes")
        if region.is_active and row["state"] == "active" and str(region.cidr) != row["cidr"]:
            raise RegionsRefused(f"{name}: cidr was {row['cidr']} and never changes while the region is active")


def render(mesh: Mesh) -> dict[str, Any]:
    """Return the document: providers of all regions, modules of the active ones, a peering of each pair of these."""
    return {
        "//": "Rendered from regions.toml by render.py. A change here is lost.",
        "locals": {
            "mesh": mesh.name,
            "global_region": mesh.global_region,
            "regions": {
                region.name: {"number": region.number, "cidr": str(region.cidr), "state": region.state}
                for region in mesh.regions
            },
            "made": {region.name: f"${{module.{region.label}.inventory}}" for region in mesh.active},
            "balancers": {region.name: f"${{module.{region.label}.balancer}}" for region in mesh.active},
        },
        "provider": {"aws": [_provider(mesh.global_region), *(_provider(r.name, r.label) for r in mesh.regions)]},
        "module": {
            **{region.label: _module(region) for region in mesh.active},
            **{f"{a.label}_{b.label}": _peering(a, b) for a, b in itertools.combinations(mesh.active, 2)},
        },
    }


def _provider(name: str, alias: str = "") -> dict[str, Any]:
    return {"region": name, **({"alias": alias} if alias else {}), "default_tags": {"tags": "${local.tags}"}}


def _module(region: Region) -> dict[str, Any]:
    return {
        "source": "./modules/region",
        "providers": {"aws": f"aws.{region.label}"},
        "name": region.name,
        "cidr": str(region.cidr),
        "brokers": region.brokers,
        "gateways": region.gateways,
        "zones": list(region.zones),
        "image": region.image,
        "settings": "${local.settings}",
    }


def _peering(asking: Region, accepting: Region) -> dict[str, Any]:
    return {
        "source": "./modules/peering",
        "providers": {"aws.asking": f"aws.{asking.label}", "aws.accepting": f"aws.{accepting.label}"},
        "mesh": "${local.mesh}",
        "asking": f"${{module.{asking.label}.network}}",
        "accepting": f"${{module.{accepting.label}.network}}",
    }


def _follow(mesh: Mesh, rendered: Mapping[str, Any]) -> None:
    try:
        follows(mesh, rendered)
    except RegionsRefused as refused:
        raise RegionsRefused(f"{refused}. Nothing of it was applied yet? Then render.py --anew") from refused


def _written(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 when the file is written or up to date, 1 with one line on stderr when not."""
    parser = argparse.ArgumentParser(prog="render.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--regions", type=Path, default=HERE / "regions.toml", metavar="FILE", help="what to read")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER", help=f"where {RENDERED} goes")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is not up to date")
    parser.add_argument("--anew", action="store_true", help="for a mesh of its own: do not look at what was rendered")
    options = parser.parse_args(arguments)
    target = options.out / RENDERED
    try:
        mesh = parse(options.regions.read_text())
        before = _read(target)
        if before is not None and not options.anew:
            _follow(mesh, json.loads(before))
        text = _written(render(mesh))
        if options.check and text != before:
            raise RegionsRefused(f"{target.name} is not what it says. Run render.py, then terraform plan")
        if text != before:
            target.write_text(text)
    except RegionsRefused as refused:
        print(f"{options.regions.name}: {refused}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(f"render.py: {error}; if {RENDERED} was changed by hand, take it from git again", file=sys.stderr)
        return 1
    said = "is up to date" if text == before else "is written"
    pairs = len(mesh.active) * (len(mesh.active) - 1) // 2
    print(f"{target.name} {said}: {len(mesh.active)} active regions, {pairs} peerings")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The life of a mesh on AWS, in order: made, read back, a host replaced, a region added and retired, all ended."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.conftest import ROOT, TREE, Ground, Memory, StandIn

REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1")
FOURTH = '\n[[regions]]\nname = "sa-east-1"\nnumber = 4\ncidr = "10.40.0.0/16"\nbrokers = 1\ngateways = 1\n'
pytestmark = pytest.mark.timeout(1_800)


def text_of_regions() -> str:
    return (ROOT / "examples/three-regions/regions.toml").read_text()


def test_what_is_written_is_formatted_valid_and_holds_with_mocks(ground: Ground) -> None:
    ground.run("fmt", "-check", "-recursive")
    ground.run("validate")
    assert "0 failed" in ground.run("test")


def test_three_regions_are_made_and_a_second_plan_is_empty(ground: Ground) -> None:
    added, changed, destroyed = ground.apply()
    assert added > 400 and (changed, destroyed) == (0, 0)
    inventory = ground.inventory()
    assert set(inventory) == set(REGIONS)
    assert inventory["eu-west-1"]["brokers"]["broker-2"]["ip"] == "10.20.64.12"
    ground.plan_is_empty()


@pytest.mark.parametrize("region", REGIONS)
def test_no_host_is_public_and_each_wants_a_token_for_its_metadata(ground: Ground, region: str) -> None:
    hosts = ground.hosts(region)
    assert len(hosts) == 5
    for host in hosts:
        assert not host.get("PublicIpAddress") and len(host["NetworkInterfaces"]) == 1
        assert not host["NetworkInterfaces"][0].get("Association")
        assert host["MetadataOptions"]["HttpTokens"] == "required"
        assert host["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        assert len(host["SecurityGroups"]) == 1


@pytest.mark.parametrize("region", REGIONS)
def test_every_disk_is_encrypted_with_a_key_of_the_region_that_rotates(ground: Ground, region: str) -> None:
    volumes = ground.client("ec2", region).describe_volumes()["Volumes"]
    assert len(volumes) == 8 and all(volume["Encrypted"] for volume in volumes)
    (key,) = {volume["KmsKeyId"] for volume in volumes}
    assert ground.client("kms", region).get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]


@pytest.mark.parametrize("region", REGIONS)
def test_nothing_is_open_but_the_balancer_for_the_clients_that_were_named(ground: Ground, region: str) -> None:
    ec2 = ground.client("ec2", region)
    (vpc,) = [row["VpcId"] for row in ec2.describe_vpcs()["Vpcs"] if not row["IsDefault"]]
    inside = [{"Name": "vpc-id", "Values": [vpc]}]
    groups = ec2.describe_security_groups(Filters=inside)["SecurityGroups"]
    closed = next(group for group in groups if group["GroupName"] == "default")
    assert closed["IpPermissions"] == closed["IpPermissionsEgress"] == []
    let_in = {
        (group["GroupName"].split("-")[-2], row["CidrIp"], rule["FromPort"])
        for group in groups
        for rule in group["IpPermissions"]
        for row in rule["IpRanges"]
    }
    public = {row for row in let_in if not row[1].startswith("10.")}
    assert public == {("balancer", "203.0.113.0/24", port) for port in (8080, 8090, 19092)}
    assert {row for row in let_in if row[2] == 22} == {(kind, "10.200.0.0/16", 22) for kind in ("broker", "gateway")}
    subnets = ec2.describe_subnets(Filters=inside)["Subnets"]
    assert len({row["AvailabilityZone"] for row in subnets}) == 3 and len(subnets) == 6
    assert not any(row["MapPublicIpOnLaunch"] for row in subnets)


def test_hosts_may_ship_traces_and_nothing_else(ground: Ground) -> None:
    iam = ground.client("iam", "us-east-1")
    for role in ("georelay-broker", "georelay-gateway"):
        assert iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"] == []
        (name,) = iam.list_role_policies(RoleName=role)["PolicyNames"]
        document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        rows = document["Statement"]
        actions = {
            action for row in rows for action in ([row["Action"]] if isinstance(row["Action"], str) else row["Action"])
        }
        assert actions == {
            *("s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
            *("s3:ListBucket", "kms:GenerateDataKey", "kms:Decrypt"),
        }
        assert all(row["Resource"].startswith(("arn:aws:s3:::georelay-traces-", "arn:aws:kms:")) for row in rows)


def test_traces_are_encrypted_closed_to_the_public_and_expire(ground: Ground) -> None:
    s3 = ground.client("s3", "us-east-1")
    (bucket,) = [row["Name"] for row in s3.list_buckets()["Buckets"]]
    (deny,) = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    assert deny["Effect"] == "Deny" and deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert all(s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"].values())
    (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    (expire,) = s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert expire["Expiration"]["Days"] == 90 and expire["Status"] == "Enabled"


def test_secrets_are_there_and_empty(ground: Ground) -> None:
    secrets = ground.client("secretsmanager", "us-east-1")
    names = {row["Name"] for row in secrets.list_secrets()["SecretList"]}
    shared = {"georelay/authority", "georelay/gossip-wan", "georelay/administration"}
    assert names == {*shared, "georelay/us-east-1/gossip-lan"}
    for name in names:
        with pytest.raises(secrets.exceptions.ResourceNotFoundException):
            secrets.get_secret_value(SecretId=name)


def test_ansible_finds_each_host_by_its_name_with_its_address_and_disk(ground: Ground) -> None:
    found = json.loads(ground.ansible("ansible-inventory", "--list"))
    assert len(found["brokers"]["hosts"]) == 9 and len(found["gateways"]["hosts"]) == 6
    broker = found["_meta"]["hostvars"]["broker-2.eu-west-1"]
    volume = ground.inventory()["eu-west-1"]["brokers"]["broker-2"]["volume"].replace("-", "")
    assert (broker["ansible_host"], broker["georelay_region_number"]) == ("10.20.64.12", 2)
    assert broker["georelay_data_device"].endswith(f"Store_{volume}")
    assert set(broker["georelay_secrets"]) == {
        *("authority", "gossip_wan", "administration"),
        *(f"gossip_lan/{region}" for region in REGIONS),
    }


def prepared(ground: Ground, folder: Path) -> dict[str, str]:
    """Return files by name after the part of site.yml that runs on the machine of an operator."""
    settings = {"georelay_mesh_dir": str(folder), "georelay_home": "us-east-1", "georelay_release": "none"}
    said = ground.ansible("ansible-playbook", "site.yml", "--limit", "localhost", "-e", json.dumps(settings))
    print(said[said.index("PLAY RECAP") :].strip())
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_secrets_are_filled_with_what_ansible_makes_and_another_machine_goes_on_with_it(
    ground: Ground, tmp_path: Path
) -> None:
    first = prepared(ground, tmp_path / "first")
    secrets = ground.client("secretsmanager", "us-east-1")
    authority = json.loads(secrets.get_secret_value(SecretId="georelay/authority")["SecretString"])["files"]
    assert authority["pki/ca-1.key"] == first["pki/ca-1.key"] and "pki/broker-1001.key" in first
    lan = ground.client("secretsmanager", "eu-west-1").get_secret_value(SecretId="georelay/eu-west-1/gossip-lan")
    assert json.loads(lan["SecretString"])["files"] == {"lan-eu-west-1.keyring": first["lan-eu-west-1.keyring"]}
    assert first["pki/ca-1.key"].splitlines()[1] not in (ground.folder / "terraform.tfstate").read_text()
    second = prepared(ground, tmp_path / "second")
    assert second.keys() == first.keys()
    own = {name for name in first if name.startswith(("pki/broker-", "pki/gateway-"))}
    assert {name for name in first if first[name] != second[name]} == own and len(own) == 30
    assert prepared(ground, tmp_path / "first") == first


def test_the_nearest_healthy_region_answers_to_one_name_and_each_to_its_own(ground: Ground) -> None:
    route53 = ground.client("route53", "us-east-1")
    (zone,) = route53.list_hosted_zones()["HostedZones"]
    rows = route53.list_resource_record_sets(HostedZoneId=zone["Id"])["ResourceRecordSets"]
    nearest = [row for row in rows if row["Name"] == "gateway.mesh.example.com."]
    assert {row["Region"] for row in nearest} == set(REGIONS) and all(row["HealthCheckId"] for row in nearest)
    assert {row["Name"] for row in rows if row["Type"] == "CNAME"} == {
        f"gateway.{region}.mesh.example.com." for region in REGIONS
    }
    checks = route53.list_health_checks()["HealthChecks"]
    alarms = {row["HealthCheckConfig"]["AlarmIdentifier"]["Name"] for row in checks}
    assert alarms == {f"georelay-{region}-no-gateway" for region in REGIONS}


@pytest.mark.parametrize("region", REGIONS)
def test_each_region_reaches_each_other_one(ground: Ground, region: str) -> None:
    ec2 = ground.client("ec2", region)
    peerings = ec2.describe_vpc_peering_connections()["VpcPeeringConnections"]
    assert len(peerings) == 2 and {row["Status"]["Code"] for row in peerings} == {"active"}
    tables = ec2.describe_route_tables()["RouteTables"]
    ways = [
        {row["DestinationCidrBlock"] for row in table["Routes"] if "VpcPeeringConnectionId" in row} for table in tables
    ]
    (others,) = {frozenset(way) for way in ways if way}
    assert len([way for way in ways if way]) == 3 and len(others) == 2


def test_what_moto_does_not_know_is_refused_at_once_with_its_name(ground: Ground) -> None:
    ec2 = ground.client("ec2", "eu-west-1")
    began_s = time.monotonic()
    with pytest.raises(ec2.exceptions.ClientError, match="moto fails: NotImplementedError"):
        ec2.create_instance_connect_endpoint(SubnetId="subnet-0")
    assert time.monotonic() - began_s < 10


def _hosts(inventory: dict[str, Any]) -> dict[str, str]:
    return {
        f"{name}.{region}": host["id"]
        for region in REGIONS
        for name, host in {**inventory[region]["brokers"], **inventory[region]["gateways"]}.items()
    }


def test_a_replaced_broker_keeps_its_volume_and_its_address_and_no_other_host_changes(ground: Ground) -> None:
    inventory, name = ground.inventory(), "broker-2.eu-west-1"
    before = inventory["eu-west-1"]["brokers"]["broker-2"]
    added, _, destroyed = ground.apply('-replace=module.eu_west_1.aws_instance.host["broker-2"]')
    assert (added, destroyed) == (2, 2)  # the instance and the attachment of its volume
    others = {host: of for host, of in _hosts(inventory).items() if host != name}
    inventory = ground.inventory()
    after = inventory["eu-west-1"]["brokers"]["broker-2"]
    assert _hosts(inventory) == {**others, name: after["id"]} and after["id"] != before["id"]
    assert (after["volume"], after["ip"]) == (before["volume"], before["ip"])
    (disk,) = ground.client("ec2", "eu-west-1").describe_volumes(VolumeIds=[after["volume"]])["Volumes"]
    assert disk["Attachments"][0]["InstanceId"] == after["id"]


def _running(ground: Ground) -> dict[str, tuple[str, str]]:
    """Return id and address of every host that runs, by region and name, as AWS says it."""
    found = {}
    for region in REGIONS:
        for host in ground.hosts(region):
            (name,) = (tag["Value"] for tag in host["Tags"] if tag["Key"] == "Name")
            found[f"{name.rpartition(f'-{region}-')[2]}.{region}"] = (host["InstanceId"], host["PrivateIpAddress"])
    return found


def test_work_goes_past_a_region_of_aws_that_is_down_and_the_inventory_holds(ground: Ground, stand_in: StandIn) -> None:
    before = _running(ground)
    with stand_in.down("ap-southeast-1"):
        ground.run("plan", "-var-file=mesh.tfvars", code=1)
        past = ("-refresh=false", "-target=module.eu_west_1")
        ground.apply(*past, '-replace=module.eu_west_1.aws_instance.host["gateway-1"]')
    after = _running(ground)
    (changed,) = (host for host in before if before[host] != after[host])
    assert changed == "gateway-1.eu-west-1"
    # Terraform writes no output of a plan that leaves something out: the id there is of the host before.
    assert ground.inventory()["eu-west-1"]["gateways"]["gateway-1"]["ip"] == after[changed][1]


def test_a_fourth_region_joins_and_no_host_of_the_others_changes(ground: Ground) -> None:
    before = _running(ground)
    ground.render(text_of_regions() + FOURTH)
    ground.run("init")
    _, _, destroyed = ground.apply("-refresh=false")
    inventory = ground.inventory()
    assert destroyed == 0 and _running(ground) == before
    assert _hosts(inventory) == {name: host for name, (host, _) in before.items()}
    assert set(inventory["sa-east-1"]["brokers"]) == {"broker-1"}


def test_a_region_retires_in_two_steps_and_leaves_snapshots_of_its_disks(ground: Ground) -> None:
    ground.render(text_of_regions() + FOURTH + 'state = "retired"\n')
    ground.apply("-refresh=false")
    assert ground.hosts("sa-east-1") == []
    ec2 = ground.client("ec2", "sa-east-1")
    assert ec2.describe_volumes()["Volumes"] == []
    ours = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert len([row for row in ours if row.get("Tags")]) == 1
    ground.render(text_of_regions())
    ground.plan_is_empty()


def test_destroy_leaves_nothing_but_snapshots_of_the_disks(ground: Ground) -> None:
    words = ("-auto-approve", "-var-file=mesh.tfvars", "-parallelism=20", "-refresh=false")
    print(ground.run("destroy", *words).strip().splitlines()[-1])
    for region in REGIONS:
        ec2 = ground.client("ec2", region)
        assert ground.hosts(region) == [] and ec2.describe_volumes()["Volumes"] == []
        assert [row for row in ec2.describe_vpcs()["Vpcs"] if not row["IsDefault"]] == []
        assert ec2.describe_addresses()["Addresses"] == []
        assert ground.client("elbv2", region).describe_load_balancers()["LoadBalancers"] == []
        kms = ground.client("kms", region)
        states = [kms.describe_key(KeyId=row["KeyId"])["KeyMetadata"] for row in kms.list_keys()["Keys"]]
        assert {row["KeyState"] for row in states if row["KeyManager"] == "CUSTOMER"} <= {"PendingDeletion"}
    assert ground.client("s3", "us-east-1").list_buckets()["Buckets"] == []
    assert ground.client("route53", "us-east-1").list_hosted_zones()["HostedZones"] == []
    roles = ground.client("iam", "us-east-1").list_roles()["Roles"]
    assert [row["RoleName"] for row in roles if row["RoleName"].startswith("georelay")] == []


def test_six_regions_are_planned_in_the_memory_of_a_small_machine(tmp_path: Path, stand_in: StandIn) -> None:
    six = Ground(tmp_path / "six", stand_in.port)
    more = ("eu-central-1", "us-west-2", "ap-northeast-1")
    tables = (
        f'\n[[regions]]\nname = "{name}"\nnumber = {n}\ncidr = "10.{n}0.0.0/16"\n' for n, name in enumerate(more, 4)
    )
    six.render(text_of_regions() + "".join(tables))
    six.run("init")
    began_s = time.monotonic()
    with Memory() as memory:
        output = six.run("plan", "-var-file=mesh.tfvars")
    seconds = time.monotonic() - began_s
    planned = next(line for line in output.splitlines() if line.startswith("Plan:"))
    print(f"six regions: {planned} {seconds:.0f} s, at most {memory.most_kib / 1024:.0f} MiB (PSS)")
    assert 0 < memory.most_kib < 3 * 1024 * 1024


def test_the_lab_of_hosts_has_the_addresses_that_terraform_gives_its_mesh(tmp_path: Path, stand_in: StandIn) -> None:
    lab = TREE / "deploy/lab"
    mesh = Ground(tmp_path / "lab", stand_in.port)
    mesh.render((lab / "regions.toml").read_text(), "--anew")
    mesh.run("init")
    mesh.run("plan", "-var-file=mesh.tfvars", "-out=lab.plan")
    planned = json.loads(mesh.run("show", "-json", "lab.plan"))["planned_values"]["root_module"]["child_modules"]
    hosts = {
        f"{host['index']}.{region['address'].removeprefix('module.').replace('_', '-')}": host["values"]["private_ip"]
        for region in planned
        for host in region["resources"]
        if host["type"] == "aws_instance"
    }
    outputs = json.loads((lab / "outputs.json").read_text())["inventory"]["value"]
    assert hosts == {
        f"{name}.{region}": host["ip"]
        for region, row in outputs.items()
        for name, host in (row["brokers"] | row["gateways"]).items()
    }

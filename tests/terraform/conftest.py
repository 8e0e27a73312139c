"""A mesh that Terraform makes where moto stands in for AWS; `make tf` runs these tests, nothing else collects them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).resolve().parents[2]
ROOT = TREE / "deploy/terraform"
collect_ignore_glob = [] if os.environ.get("GEORELAY_TF") else ["test_*.py"]
KEPT_OUT = shutil.ignore_patterns(".terraform", "*.tfstate*", "*.tfvars", "__pycache__", "backend.tf")
COMMAND_S_MAX = 1_200  # the tests with mocks took 600 s at a load of 40
ACTIVE = re.compile(r"Resources: (\d+) added, (\d+) changed, (\d+) destroyed")


class Ground:
    """A copy of deploy/terraform with a state of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        shutil.copytree(ROOT, folder, ignore=KEPT_OUT)
        shutil.copy(ROOT / "examples/three-regions/mesh.tfvars", folder / "mesh.tfvars")
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
        }

    def run(self, *words: str, code: int = 0, said: list[str] | None = None) -> str:
        """Return what terraform printed."""
        began_s = time.monotonic()
        ended = subprocess.run(
            ["terraform", *words, "-no-color"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,  # its error names the command
        )
        print(f"terraform {' '.join(words)}: {time.monotonic() - began_s:.0f} s, exit code {ended.returncode}")
        assert ended.returncode == code, (ended.stdout + ended.stderr)[-6_000:]
        return ended.stdout

    def apply(self, *words: str) -> tuple[int, int, int]:
        """Return how many resources were added, changed and destroyed."""
        output = self.run("apply", "-auto-approve", "-var-file=mesh.tfvars", "-parallelism=20", *words)
        found = ACTIVE.search(output)
        assert found is not None, output[-2_000:]
        print(f"  {found[0]}", *re.findall(r"^  # (.*) will be updated in-place", output, flags=re.M), sep="\n  ~ ")
        return int(found[1]), int(found[2]), int(found[3])

    def plan_is_empty(self) -> None:
        """Fail when terraform would change anything (exit code 2)."""
        self.run("plan", "-detailed-exitcode", "-var-file=mesh.tfvars")

    def render(self, text: str, *words: str) -> None:
        """Write regions.toml and render it."""
        (self.folder / "regions.toml").write_text(text)
        subprocess.run([sys.executable, "render.py", *words], cwd=self.folder, check=True)

    def inventory(self) -> dict[str, Any]:
        """Return the output that Ansible reads."""
        found: dict[str, Any] = json.loads(self.run("output", "-json"))["inventory"]["value"]
        return found

    def ansible(self, command: str, *words: str) -> str:
        """Return what a command of ansible-core printed, with the outputs as inventory and moto as AWS."""
        outputs = self.folder / "outputs.json"
        outputs.write_text(self.run("output", "-json"))
        ways = [str(Path(sys.executable).parent), str(TREE / ".venv/bin"), os.environ["PATH"]]  # aws, georelay
        more = {
            "GEORELAY_TF_OUTPUT": str(outputs),
            "PATH": ":".join(ways),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
        }
        ended = subprocess.run(
            [Path(sys.executable).with_name(command), "-i", "inventory/terraform.py", *words],
            cwd=TREE / "deploy/ansible",
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
        )
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6_000:]
        return ended.stdout

    def client(self, service: str, region: str) -> Any:
        """Return a client of the API."""
        import boto3

        words = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        return boto3.client(service, region_name=region, endpoint_url=self.url, **words)

    def hosts(self, region: str) -> list[dict[str, Any]]:
        """Return the instances that run."""
        rows = self.client("ec2", region).describe_instances()["Reservations"]
        hosts = [host for row in rows for host in row["Instances"]]
        return [host for host in hosts if host["State"]["Name"] == "running"]


class Memory:
    """Samples the memory of terraform and its providers, which share one binary: PSS counts a shared page once."""

    def __init__(self) -> None:
        self.most_kib = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            found = subprocess.run(["pgrep", "-s", "0", "terraform"], capture_output=True, text=True).stdout.split()
            total = 0
            for pid in found:
                try:
                    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                except OSError:
                    continue
                total += int(re.search(r"^Pss: +(\d+)", text, flags=re.M)[1])  # type: ignore[index]
            self.most_kib = max(self.most_kib, total)


class StandIn:
    """moto, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port: int = self._answer()["port"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    @contextlib.contextmanager
    def down(self, region: str) -> Iterator[None]:
        """Have the API of a region refuse everything."""
        self._say(f"down {region}")
        yield
        self._say(f"up {region}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        self._answer()


@pytest.fixture(scope="session")
def stand_in() -> Iterator[StandIn]:
    """Return moto, which is there until the last test has ended."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stand_in.py"))]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True) as process:
        yield StandIn(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory, stand_in: StandIn) -> Ground:
    """Return the mesh of three regions, not applied yet."""
    made = Ground(tmp_path_factory.mktemp("tf") / "mesh", stand_in.port)
    made.run("init")
    return made

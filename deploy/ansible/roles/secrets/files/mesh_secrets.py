#!/usr/bin/env python3
"""Keeps the folder of a mesh and the secrets that Terraform made the same: what changed on one side goes to the other.

Rule 1: secrets.json in the folder remembers what was the same at last, so that it is known which side changed since.
Rule 2: where both changed, neither is touched; the refusal says how to go on.
Rule 3: a value goes to the command line of AWS by its standard input, never as an argument that other users can see.
Rule 4: nothing but Python and the command line of AWS, which knows its own credentials.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HELD: Final = {
    "authority": ("pki/ca-*.key", "pki/ca-*.crt", "pki/bundle.crt", "pki/pki.json"),
    "gossip_wan": ("wan.keyring",),
    "administration": ("admin.password", "users.json", "mesh.json"),
}
REGION: Final = "gossip_lan/"  # and the name of the region
SEEN: Final = "secrets.json"
VALUE_BYTES_MAX: Final = 65_536  # of Secrets Manager
AWS_TIMEOUT_S: Final = 60
Files = dict[str, str]


class SecretsRefused(Exception):
    """Nothing more is done; the text is the one line for who runs the play."""


def patterns(name: str) -> tuple[str, ...]:
    """Return which files of the folder the secret `name` holds."""
    found = (f"lan-{name.removeprefix(REGION)}.keyring",) if name.startswith(REGION) else HELD.get(name)
    if found is None:
        raise SecretsRefused(f"{name} is no secret of a mesh; there are {', '.join(HELD)} and {REGION}REGION")
    return found


def decide(here: str, there: str, last: str) -> str:
    """Return `put`, `take`, `same` or `differs` from digests of the folder, the secret, and both at last ("": none)."""
    if here == there:
        return "same"
    if not there or (here and there == last):
        return "put"
    return "take" if not here or here == last else "differs"


def digest(files: Files) -> str:
    """Return what tells one content from another; "" of none."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() if files else ""


class Folder:
    """The mesh's own folder on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        seen = path / SEEN
        self.seen: dict[str, str] = json.loads(seen.read_text()) if seen.exists() else {}

    def files(self, name: str) -> Files:
        """Return text by name of what the secret `name` holds."""
        found = sorted(file for pattern in patterns(name) for file in self._path.glob(pattern))
        return {file.relative_to(self._path).as_posix(): file.read_text(encoding="utf-8") for file in found}

    def take(self, name: str, files: Files) -> None:
        """Make the files of `name` those of the secret, each whole or not at all."""
        for file, text in files.items():
            target = self._path / file
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(target, text)
        for file in self.files(name).keys() - files.keys():
            (self._path / file).unlink()

    def remember(self, name: str, files: Files) -> None:
        """Note that both sides hold `files`."""
        if self.seen.get(name) != digest(files):
            self.seen[name] = digest(files)
            _replace(self._path / SEEN, json.dumps(self.seen, indent=2) + "\n")


def _replace(target: Path, text: str) -> None:
    part = target.with_name(target.name + ".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)


def fetch(name: str, arn: str) -> Files:
    """Return what the secret holds; nothing when it is empty."""
    done = _aws("get-secret-value", arn, "--query", "SecretString", "--output", "text")
    if done.returncode != 0 and "staging label" in done.stderr:
        return {}  # made by Terraform, never filled
    try:
        files = json.loads(_printed(done, arn))["files"]
        if not files or not all(isinstance(text, str) and _belongs(name, file) for file, text in files.items()):
            raise ValueError("files of another kind")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SecretsRefused(
            f"{arn} was filled by something else ({error}): empty it, or look what is in it"
        ) from error
    return dict(files)


def _belongs(name: str, file: str) -> bool:
    return ".." not in file and any(Path(file).match(pattern) for pattern in patterns(name)) and file[0] != "/"


def put(arn: str, files: Files) -> None:
    """Make the secret hold `files`."""
    value = json.dumps({"version": 1, "files": files}, sort_keys=True)
    if len(value.encode()) > VALUE_BYTES_MAX:
        raise SecretsRefused(f"{arn}: {len(value.encode())} bytes, and a secret holds {VALUE_BYTES_MAX}")
    _printed(_aws("put-secret-value", arn, "--secret-string", "file:///dev/stdin", stdin=value), arn)


def _aws(verb: str, arn: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    region = arn.split(":")[3] if arn.count(":") >= 6 else ""
    if not region:
        raise SecretsRefused(f"{arn!r} is no ARN of a secret; `terraform output secrets` has them")
    command = ["aws", "secretsmanager", verb, "--secret-id", arn, "--region", region, *words]
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=AWS_TIMEOUT_S)
    except FileNotFoundError as error:
        raise SecretsRefused("the command line of AWS (aws) is not on the PATH of this machine: install it") from error
    except subprocess.TimeoutExpired as error:
        raise SecretsRefused(f"{arn}: AWS did not answer within {AWS_TIMEOUT_S} s") from error


def _printed(done: subprocess.CompletedProcess[str], arn: str) -> str:
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SecretsRefused(f"{arn}: {said}")
    return done.stdout


def keep_same(folder: Folder, secrets: Mapping[str, str]) -> list[str]:
    """Bring each side to where the other one is ahead; returns one line for each change.

    Raises:
        SecretsRefused: both changed, AWS refuses, or a secret holds something else.
    """
    plan = []
    for name, arn in secrets.items():
        here, there = folder.files(name), fetch(name, arn)
        way = decide(digest(here), digest(there), folder.seen.get(name, ""))
        if way == "differs":
            raise SecretsRefused(
                f"{name}: the folder and {arn} both changed: move its files ({', '.join(sorted(here))}) away to take "
                "the secret, or compare them first"
            )
        plan.append((way, name, arn, here, there))
    changes = []
    for way, name, arn, here, there in plan:  # nothing is done before everything is known to agree
        if way == "put":
            put(arn, here)
            changes.append(f"put {name}: {', '.join(sorted(here))}")
        elif way == "take":
            folder.take(name, there)
            changes.append(f"took {name}: {', '.join(sorted(there))}")
        if here or there:
            folder.remember(name, here if way == "put" else there)
    return changes


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 and print each change; 1 with one line on standard error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the mesh: ~/.georelay/MESH_ID")
    parser.add_argument("secrets", help='JSON of ARNs: {"authority": "arn:...", "gossip_lan/eu-west-1": "arn:..."}')
    options = parser.parse_args(arguments)
    try:
        secrets: dict[str, Any] = json.loads(options.secrets)
        for change in keep_same(Folder(options.folder), secrets):
            print(change)
    except (SecretsRefused, OSError, ValueError) as error:
        print(f"secrets: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a running broker has loaded: memory of every broker there is, so it loads what it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.free_ports import free_ports

RUN = """
import json, os, signal, sys, threading, time, urllib.request
from pathlib import Path
from region.__main__ import main

config, admin, spool = sys.argv[1:]

def is_ready():
    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=1):
            return not spool or any(Path(spool).glob("*.wal"))
    except OSError:
        return False

def look():
    while not is_ready():
        time.sleep(0.02)
    names = json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))
    os.write(2, b"\\n" + names.encode() + b"\\n")  # in one piece: the broker's other thread writes lines too
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look, daemon=True).start()
sys.exit(main(["--config", config]))
"""


def start(folder: Path, *, traces: bool) -> subprocess.Popen[str]:
    """Start a lone broker that tells what it has loaded once it is ready, and has written traces if it shall."""
    folder.mkdir()
    listen = dict(
        zip(("kafka", "grpc", "peers", "link", "admin"), map("127.0.0.1:{}".format, free_ports(5)), strict=True)
    )
    config = folder / "broker.toml"
    config.write_text(
        f'mesh_id = "m"\nregion = "us"\nbroker = 1\ndata_dir = "{folder / "data"}"\ndefinitions_home = "us"\n'
        + f"die_with_parent = {os.getpid()}\n"
        + (f'trace_dir = "{folder / "traces"}"\n' if traces else "")
        + "[listen]\n"
        + "".join(f'{name} = "{address}"\n' for name, address in listen.items())
        + '[[regions]]\nname = "us"\nnumber = 1\n'
        + f'brokers = [{{number = 1, peers = "{listen["peers"]}", link = "{listen["link"]}"}}]\n'
    )
    command = [sys.executable, "-c", RUN, str(config), listen["admin"], str(folder / "traces/.spool") if traces else ""]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def loaded(broker: subprocess.Popen[str]) -> set[str]:
    _, said = broker.communicate(timeout=60)
    assert broker.returncode == 0, said
    return set(json.loads(next(line for line in said.splitlines() if line.startswith("["))))


def test_no_broker_loads_pandas_or_numpy_and_one_without_traces_no_arrow(tmp_path: Path) -> None:
    writing, plain = start(tmp_path / "writing", traces=True), start(tmp_path / "plain", traces=False)
    with_traces, without = loaded(writing), loaded(plain)
    assert "pyarrow" in with_traces
    assert {"pandas", "numpy"} & with_traces == set()
    assert {"pandas", "numpy", "pyarrow"} & without == set()
    assert {"region", "grpc"} <= without  # it looked at a broker

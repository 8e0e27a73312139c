"""Time, CPU and resident memory of a process and all it starts, by what they are: Java, Python, others."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.machine import cpu_seconds, resident_mib

SAMPLE_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command cost.

    Args:
        wall_s, cpu_s: seconds; CPU of all processes as last seen.
        peak_mib: the largest sum of resident memory of one sample; peaks_mib: the same for each kind of process.
        load: the machine's load average of the last minute, at the end.
    """

    status: int
    output: str
    wall_s: float
    cpu_s: float
    peak_mib: float
    peaks_mib: Mapping[str, float]
    load: float

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {mib:.0f}" for kind, mib in sorted(self.peaks_mib.items()))
        spent = f"{self.wall_s:.1f} s, CPU {self.cpu_s:.1f} s, peak memory {self.peak_mib:.0f} MiB ({kinds})"
        return f"{spent}, load {self.load:.1f}"


def measure(
    command: Sequence[str], *, log: Path, also: str | None = None, on_sample: Callable[[], None] = lambda: None
) -> Cost:
    """Run a command to its end and sample it meanwhile.

    Args:
        log: file that takes what it writes to standard error.
        also: processes with this in their command line are counted too, whoever started them.
        on_sample: called with each sample.
    """
    peaks: dict[str, float] = defaultdict(float)
    cpu_s: dict[int, float] = {}
    cpu_before_s: dict[int, float] = {}
    peak = 0.0
    began = time.monotonic()
    with log.open("wb") as errors, log.with_suffix(".out").open("w+b") as output:
        with subprocess.Popen(command, stdout=output, stderr=errors) as process:
            while process.poll() is None:
                sums: dict[str, float] = defaultdict(float)
                for pid, kind in _processes(process.pid, also).items():
                    try:
                        sums[kind] += resident_mib(pid)
                        used_s = cpu_seconds(pid)
                    except (FileNotFoundError, ProcessLookupError):
                        continue
                    cpu_before_s.setdefault(pid, used_s if also is not None and not cpu_s else 0.0)
                    cpu_s[pid] = used_s
                for kind, mib in sums.items():
                    peaks[kind] = max(peaks[kind], mib)
                peak = max(peak, sum(sums.values()))
                on_sample()
                time.sleep(SAMPLE_EVERY_S)
        wall_s = time.monotonic() - began
        output.seek(0)
        text = output.read().decode()
    return Cost(
        status=process.returncode,
        output=text,
        wall_s=wall_s,
        cpu_s=sum(used_s - cpu_before_s[pid] for pid, used_s in cpu_s.items()),
        peak_mib=peak,
        peaks_mib=dict(peaks),
        load=os.getloadavg()[0],
    )


def _processes(root: int, also: str | None) -> dict[int, str]:
    """Return a process and its descendants, and those with `also` in their command line, with what each is."""
    parents: dict[int, int] = {}
    kinds: dict[int, str] = {}
    wanted = {root}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            parents[int(entry.name)] = int(rest.split()[1])
            kinds[int(entry.name)] = "java" if name == "java" else "python" if name.startswith("python") else "other"
            if also is not None and also in (entry / "cmdline").read_bytes().decode(errors="replace"):
                wanted.add(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    while True:
        more = {pid for pid, parent in parents.items() if parent in wanted} - wanted
        if not more:
            return {pid: kinds[pid] for pid in wanted if pid in kinds}
        wanted |= more

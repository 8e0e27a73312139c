"""What `georelay up` shows a person: a bar while the mesh starts, then one line per event."""

from __future__ import annotations

from pathlib import Path

import rich.progress
from rich.console import Console

from region.devmesh.certificates import DevPki
from region.devmesh.plan_core import MeshPlan
from region.devmesh.session import Progress


class TerminalProgress(Progress):
    """A progress bar while the mesh starts, then one line per event, all on stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._task is not None:  # stopping a bar that was never shown prints an empty line
            self._task = None
            self._bar.stop()

    def preparing(self, layout: MeshPlan) -> None:
        """Show the bar."""
        self._task = self._bar.add_task("starting brokers and gateway", total=len(layout.brokers) + 1)
        self._bar.start()

    def became_ready(self, name: str) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, advance=1, description=f"{name} is ready")

    def all_ready(self, layout: MeshPlan, endpoints: Path, pki: DevPki | None = None) -> None:
        """Replace the bar by where to connect."""
        scheme = "http" if pki is None else "https"
        self._stop_bar()
        names = ", ".join(region.name for region in layout.regions)
        self.line(f"mesh {layout.mesh_id} is ready: {names}; {len(layout.brokers)} brokers")
        self.line(f"  Kafka bootstrap {layout.gateway.kafka}   REST {scheme}://{layout.gateway.http}")
        self.line(f"  gRPC {layout.gateway.grpc}   endpoints {endpoints}")
        if pki is not None:
            self.line(f"  TLS, authorities {pki.ca}")

    def line(self, text: str) -> None:
        """Print one line, above the bar if it is there."""
        self._console.print(text, markup=False, soft_wrap=True)

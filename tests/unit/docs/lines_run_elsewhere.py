"""The lines of documents that tests/e2e/docs does not run: why not, and what runs them. Pure.

A row is a page, how lines of it begin, the reason, and the test that gives the same command to its program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.unit.docs.shell_lines import ShellLine


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Lines of `page` that begin with one of `begins`: not run there for `reason`, but by `test`, a file."""

    page: str
    begins: tuple[str, ...]
    reason: str
    test: str

    def has(self, line: ShellLine) -> bool:
        """Return whether the line is one of these."""
        return line.page == self.page and line.text.startswith(self.begins)


_TEST_BED: Final = "needs a test bed with network namespaces"
_LOST_REGION: Final = "needs a region that is lost for good, of which the shared mesh would not get well"
_BROKEN_DISK: Final = "shows records that were changed on a disk by hand"
_MORE_BROKERS: Final = "needs regions of more brokers than one, and a broker that joins"
_LONG: Final = "a campaign of minutes, with a mesh or with processes of its own"

ELSEWHERE: Final = (
    Elsewhere("README.md", ("make demo",), _LONG, "tests/unit/loadtest/test_loadtest_tally.py"),
    Elsewhere("README.md", ("make test",), "would run itself", "tests/unit/suite/test_suite_limits.py"),
    Elsewhere("README.md", (".venv/bin/georelay up --tls",), "is another mesh", "tests/e2e/test_e2e_tls.py"),
    Elsewhere(
        "README.md",
        (".venv/bin/georelay up --regions",),
        "is how the shared mesh is started, with one broker in each region",
        "tests/e2e/docs/test_e2e_docs.py",
    ),
    Elsewhere(
        "README.md",
        (".venv/bin/georelay acls", ".venv/bin/georelay users"),
        "would ask every page after it to sign in; docs/operate/security.md runs the same at the end",
        "tests/e2e/docs/test_e2e_docs.py",
    ),
    Elsewhere("docs/development/testing.md", (".venv/bin/python -m pytest",), "is this suite", "tests/golden"),
    Elsewhere("docs/development/testing.md", ("make sim",), _LONG, "tests/sim/test_sim_smoke.py"),
    Elsewhere("docs/development/testing.md", (".venv/bin/python -m tests.sim",), _LONG, "tests/sim/test_sim_smoke.py"),
    Elsewhere("docs/development/testing.md", ("make chaos",), _LONG, "tests/e2e/test_e2e_chaos.py"),
    Elsewhere(
        "docs/development/testing.md",
        (".venv/bin/python -m loadtest.history",),
        "judges what `make chaos` recorded",
        "tests/unit/history/test_history_file.py",
    ),
    Elsewhere(
        "docs/development/testing.md",
        (".venv/bin/python tests/mutation",),
        "changes the code place by place for hours",
        "tests/unit/docs/test_docs_commands.py",
    ),
    Elsewhere("docs/operate/load.md", ("georelay load",), _LONG, "tests/e2e/test_e2e_load.py"),
    Elsewhere("docs/development/wan.md", ("georelay wan",), _TEST_BED, "tests/wan/test_wan_life.py"),
    Elsewhere(
        "docs/development/wan.md", ("georelay up --wan", "GEORELAY_USER"), _TEST_BED, "tests/wan/test_wan_mesh.py"
    ),
    Elsewhere("docs/development/wan.md", ("python -m loadtest.wan",), _TEST_BED, "tests/wan/test_wan_mesh.py"),
    Elsewhere(
        "docs/operate/audit.md", ("georelay audit orders", "echo $?"), _BROKEN_DISK, "tests/e2e/audit/test_e2e_audit.py"
    ),
    Elsewhere(
        "docs/operate/brokers-and-topics.md",
        ("georelay broker add", "georelay broker remove", "georelay topics reassign"),
        _MORE_BROKERS,
        "tests/e2e/test_e2e_membership.py",
    ),
    Elsewhere(
        "docs/operate/drills.md",
        (
            "georelay drill region-loss --runs",
            "georelay drill region-loss --loopback",
            "georelay drill link-cut",
            "georelay drill broker-loss",
        ),
        _LONG,
        "tests/unit/loadtest_drill/test_drill_command.py",
    ),
    Elsewhere(
        "docs/operate/gossip.md",
        ("serf agent", "serf query"),
        "a foreign agent that stays, on ports of its own",
        "tests/interop/gossip/test_gossip_interop_traffic.py",
    ),
    Elsewhere(
        "docs/operate/gossip.md",
        ("grep -h 'directory",),
        "is of a gateway that knows no brokers at first",
        "tests/e2e/gateway/test_e2e_gateway_gossip.py",
    ),
    Elsewhere(
        "docs/operate/groups.md",
        ("georelay home failover", "georelay groups describe billing --region eu"),
        _LOST_REGION,
        "tests/e2e/group_homes/test_e2e_group_homes.py",
    ),
    Elsewhere(
        "docs/operate/homes.md", ("georelay home failover",), _LOST_REGION, "tests/e2e/control/test_e2e_policies.py"
    ),
    Elsewhere(
        "docs/operate/orphan-branches.md",
        ("georelay orphans export", "georelay orphans republish", "georelay orphans drop"),
        _LOST_REGION,
        "tests/unit/homes/test_homes_drills.py",
    ),
    Elsewhere("docs/operate/metrics.md", ("make alerts",), _LONG, "tests/unit/broker/test_broker_monitored.py"),
    Elsewhere(
        "docs/operate/traces.md",
        ("georelay-sla ship", "georelay-sla report --traces s3://"),
        "needs a bucket",
        "tests/sla/test_sla_ship.py",
    ),
    Elsewhere(
        "docs/operate/start-and-stop.md",
        ("make wheels", "python3 -m venv", "georelay-env/bin/"),
        "installs into an environment of its own",
        "tests/e2e/test_e2e_server_wheel.py",
    ),
    Elsewhere(
        "docs/operate/start-and-stop.md",
        ("podman run",),
        "needs an image that was built, and root's folders",
        "tests/unit/deploy/test_dockerfile.py",
    ),
    Elsewhere(
        "docs/operate/start-and-stop.md",
        ("make release", "tar xzf", "sha256sum", "venv/bin/pip"),
        "builds a release and installs it",
        "tests/e2e/deploy/test_e2e_release.py",
    ),
    Elsewhere(
        "docs/development/testing.md",
        ("git worktree", ".venv/bin/python -m loadtest.bench.compared"),
        "compares this checkout with another one",
        "tests/unit/loadtest/test_loadtest_compared.py",
    ),
    Elsewhere("docs/operate/upgrades.md", ("make upgrade",), _LONG, "tests/unit/loadtest_load/test_load_older_mesh.py"),
    Elsewhere(
        "docs/protocol/text.md", ("exec 3<>",), "reads until it is stopped", "tests/interop/test_interop_text.py"
    ),
    Elsewhere(
        "docs/sla/cluster.md",
        ("georelay-sla", "spark-submit", "mkdir env"),
        "needs a Spark cluster",
        "tests/sla_cluster/test_cluster_runs.py",
    ),
    Elsewhere(
        "docs/sla/end-to-end.md",
        ("georelay load run accounts",),
        _LONG,
        "tests/accounts/test_accounts_thin.py",
    ),
    Elsewhere(
        "docs/sla/live.md", ("georelay-sla live",), "runs until it is stopped", "tests/sla/spark/test_sla_live.py"
    ),
)

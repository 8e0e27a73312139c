"""`georelay route explain|list|pin|unpin|drain|keep|freeze|thaw`: where a gateway sends clients, and why."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import Where, ask, listed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import cell, print_json, print_line, print_listing, print_outcome

RULES: Final = ("kind", "subject", "value", "by")
VERDICTS: Final = ("region", "cost", "estimate", "source", "home", "shed", "why not")
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT", help="The name a client gives itself.")]
SubjectArgument = Annotated[str, typer.Argument(metavar="CLIENT|PREFIX", help="A client, or a.b.c.0/24, or x::/48.")]
RegionArgument = Annotated[str, typer.Argument(metavar="REGION")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Where a gateway sends clients, and why.", no_args_is_help=True, rich_markup_mode=None)
    for name, command in (
        ("explain", _explain),
        ("list", _list),
        ("pin", _pin),
        ("unpin", _unpin),
        ("drain", _drain),
        ("keep", _keep),
        ("freeze", _freeze),
        ("thaw", _thaw),
    ):
        group.command(name=name)(command)
    app.add_typer(group, name="route")


def _explain(
    client: ClientArgument = "",
    address: Annotated[str, typer.Option("--address", metavar="IP", help="Its address; default: yours.")] = "",
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="What it publishes to.")] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show every input and score of one client, and why it gets no other region. Changes nothing."""
    named = {"client": client, "address": address, "topic": topic}
    query = {name: text for name, text in named.items() if text}
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/routes/explain", query=query)
    if as_json:
        print_json(answer)
        return
    for line in explain_lines(answer):
        print_line(line)
    print_listing(listed(answer, "regions"), VERDICTS, verdict_line, as_json=False)


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List what operators decided, at this gateway or another one."""
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/routes")
    print_listing(listed(answer, "rules"), RULES, lambda row: {n: cell(row[n]) for n in RULES}, as_json=as_json)


def _decide(where: Where, kind: str, subject: str, value: str, done: str, *, as_json: bool) -> None:
    answer = ask(where, "POST", f"/v1/routes/{kind}", {"subject": subject, "value": value})
    print_outcome(answer, done, as_json=as_json)


def _pin(
    subject: SubjectArgument,
    region: RegionArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send a client, or everybody of a prefix, to one region while that can be used."""
    done = f"pinned {subject} to {region}"
    _decide(Where(gateway, endpoints, user), "pin", subject, region, done, as_json=as_json)


def _unpin(
    subject: SubjectArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a pin back."""
    _decide(Where(gateway, endpoints, user), "pin", subject, "", f"unpinned {subject}", as_json=as_json)


def _drain(
    region: RegionArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send no client to a region any more; those it has leave within a minute as they ask again.

    Connected Kafka clients are sent on by its brokers, once its groups were moved (`home move --groups-of`).
    """
    done = f"{region} drains: clients are sent elsewhere"
    _decide(Where(gateway, endpoints, user), "drain", region, "clients", done, as_json=as_json)


def _keep(
    region: RegionArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a drain back."""
    _decide(Where(gateway, endpoints, user), "drain", region, "", f"{region} takes clients again", as_json=as_json)


def _freeze(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """Let no client move but those whose region is lost or drains."""
    where = Where(gateway, endpoints, user)
    _decide(where, "freeze", "switching", "frozen", "switching is frozen", as_json=as_json)


def _thaw(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """Take the freeze back."""
    where = Where(gateway, endpoints, user)
    _decide(where, "freeze", "switching", "", "clients move again when another region is nearer", as_json=as_json)


def explain_lines(answer: dict[str, Any]) -> list[str]:
    """Return what stands above the table of regions. Pure."""
    held = answer.get("incumbent") or {}
    lines = [
        f"{answer.get('client') or 'a client without a name'} at {answer.get('address')}: {answer.get('chosen')}, "
        f"because {answer.get('reason')}"
    ]
    if held.get("region"):
        lines.append(f"it has {held['region']} for {held['for_s']:.0f} s")
    if answer.get("challenger"):
        lines.append(
            f"{answer['challenger']} would gain {answer['gain_ms']:g} ms of the {answer['margin_ms']:g} ms that a move "
            f"has to gain; confirmed {answer['confirmations']} of 3 times"
        )
    if answer.get("degraded"):
        lines.append("this gateway hears less than half of the mesh: it takes itself for the one that is cut off")
    if answer.get("pin"):
        lines.append(f"pinned to {answer['pin']}")
    kernel_ms = answer.get("kernel_ms")
    lines.append(
        "not seen by this gateway yet" if kernel_ms is None else f"{kernel_ms:g} ms from this gateway (kernel)"
    )
    return lines


def verdict_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one region. Pure."""
    texts = {
        "region": row["region"],
        "cost": _ms(row["cost_ms"]),
        "estimate": f"{_ms(row['estimate_ms'])} +- {_ms(row['error_ms'])}",
        "source": row["source"],
        "home": _ms(row["home_ms"]),
        "shed": f"{row['shed']:.0%}",
        "why not": "; ".join(row["why_not"]),
    }
    return {name: cell(text) for name, text in texts.items()}


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"

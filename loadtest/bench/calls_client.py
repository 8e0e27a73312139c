"""The processes of the benchmark of single gRPC calls, see loadtest.bench.calls.

`python -m loadtest.bench.calls_client call ADDRESS TOPIC RATE SECONDS` publishes 100 bytes per call at a steady rate;
the value begins with when it was due (monotonic ns). It prints one JSON line.
`python -m loadtest.bench.calls_client echo` and `... relay ADDRESS` are what gRPC costs without us: a server that
answers at once, and one that asks that server. They print their address and serve until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from loadtest.bench.schedule_core import Load
from loadtest.quantile_core import quantile

METHOD: Final = "/broker.Broker/Publish"
DEADLINE_S: Final = 10.0
TICK_S: Final = 0.002
OPTIONS: Final = (("grpc.enable_http_proxy", 0),)


def request_of(load: Load, number: int, due_ns: int) -> bytes:
    """Return a broker.PublishRequest; by hand, so that a relay and an echo need no contract."""
    name, body = load.topic(number).encode(), load.value(due_ns, number)
    return b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(body)]) + body


async def call(address: str, topic: str, rate: int, seconds: int) -> dict[str, Any]:
    """Call for so long and wait for the answers; return what became of the calls."""
    answers: Counter[str] = Counter()
    said: dict[str, str] = {}
    latencies_ns: list[int] = []
    load = Load(topics=[topic], rate_per_s=rate, seconds=seconds)
    open_calls: set[asyncio.Task[None]] = set()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        publish = channel.unary_unary(METHOD)

        async def one(number: int, due_ns: int) -> None:
            try:
                await publish(request_of(load, number, due_ns), timeout=DEADLINE_S)
                answers["ok"] += 1
                latencies_ns.append(time.monotonic_ns() - due_ns)
            except grpc.aio.AioRpcError as error:
                code = dict(error.trailing_metadata() or ()).get("georelay-code", error.code().name)
                answers[str(code)] += 1
                said.setdefault(str(code), error.details() or "")

        await channel.channel_ready()
        loop = asyncio.get_running_loop()
        cpu_from, began_ns = time.process_time(), time.monotonic_ns()
        for number in range(load.count):
            due_ns = load.due_ns(began_ns, number)
            while time.monotonic_ns() < due_ns:
                await asyncio.sleep(max(TICK_S / 2, (due_ns - time.monotonic_ns()) / 1e9))
            task = loop.create_task(one(number, due_ns))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)
        await asyncio.gather(*open_calls)
        cpu_s = time.process_time() - cpu_from
    return {
        "due": load.count,
        "ok": answers["ok"],
        "answers": ", ".join(f"{count} {what}" for what, count in answers.most_common()),
        "said": said,
        "cpu_s": cpu_s,
        "p50_ms": quantile(latencies_ns, 0.5, none=0) / 1e6,
        "p99_ms": quantile(latencies_ns, 0.99, none=0) / 1e6,
    }


async def serve(upstream: str | None) -> None:
    """Answer with nothing, or with what `upstream` answers."""
    channel = None if upstream is None else grpc.aio.insecure_channel(upstream, options=OPTIONS)
    ask = None if channel is None else channel.unary_unary(METHOD)

    async def publish(request: bytes, _: Any) -> bytes:
        return b"" if ask is None else bytes(await ask(request))

    server = grpc.aio.server()
    handlers = {"Publish": grpc.unary_unary_rpc_method_handler(publish)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("broker.Broker", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Play the role that the first argument names."""
    role, *given = sys.argv[1:]
    if role == "call":
        address, topic, rate, seconds = given
        sys.stdout.write(json.dumps(uvloop.run(call(address, topic, int(rate), int(seconds)))) + "\n")
    else:
        uvloop.run(serve(given[0] if given else None))


if __name__ == "__main__":
    main()

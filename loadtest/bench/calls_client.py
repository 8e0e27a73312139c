"""The processes of the benchmark of single gRPC calls, see loadtest.bench.calls.

`python -m loadtest.bench.calls_client call ADDRESS TOPIC RATE SECONDS` publishes 100 bytes per call at a steady rate;
the value begins with when it was due (monotonic ns). It prints one JSON line.
`python -m loadtest.bench.calls_client echo` and `... relay ADDRESS` are what gRPC costs without us: a server that
answers at once, and one that asks that server. They print their address and serve until SIGTERM.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from loadtest.bench.open_loop import ask_all
from loadtest.bench.schedule_core import Load

METHOD: Final = "/broker.Broker/Publish"
DEADLINE_S: Final = 10.0
OPTIONS: Final = (("grpc.enable_http_proxy", 0),)


def request_of(load: Load, number: int, due_ns: int) -> bytes:
    """Return a broker.PublishRequest; by hand, so that a relay and an echo need no contract."""
    name, body = load.topic(number).encode(), load.value(due_ns, number)
    return b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(body)]) + body


async def call(address: str, topic: str, rate: int, seconds: int) -> dict[str, Any]:
    """Call for so long and wait for the answers; return what became of the calls."""
    said: dict[str, str] = {}
    load = Load(topics=[topic], rate_per_s=rate, seconds=seconds)
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        publish = channel.unary_unary(METHOD)

        async def one(number: int, due_ns: int) -> str:
            try:
                await publish(request_of(load, number, due_ns), timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                code = str(dict(error.trailing_metadata() or ()).get("georelay-code", error.code().name))
                said.setdefault(code, error.details() or "")
                return code
            return "ok"

        await channel.channel_ready()
        return await ask_all(load, one) | {"said": said}


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

"""Asking a running test bed: one datagram there, one back (control_core.py has the requests)."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from georelay.errors import ConfigError, Unavailable
from georelay.fields import FieldError, JsonObject, dump_object, parse_object
from mesh.testbed.run_directory import BedRecord, RunDirectory

ANSWER_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 200_000


class BedClient:
    """One bed, by name or the only one that runs.

    Raises:
        Unavailable: there is none. ConfigError: there are several and none is named.
    """

    def __init__(self, name: str = "", directory: RunDirectory | None = None) -> None:
        self._directory = directory or RunDirectory()
        self.record: BedRecord = self._directory.find(name)

    def cut(self, one: str, other: str = "", *, one_way: bool = False) -> int:
        """Cut a pair (or, without `other`, everything of a region); `one_way`: only what `one` sends.

        Returns:
            when it was done, as `heal` and `slow` do: monotonic nanoseconds.
        """
        return self._change({"op": "cut", "from": one, "to": other, "one_way": one_way})

    def heal(self, one: str = "", other: str = "") -> int:
        """Make a pair, a region or everything as it was when the bed was started."""
        return self._change({"op": "heal", "from": one, "to": other})

    def slow(self, one: str, other: str = "", *, one_way: bool = False, **settings: int) -> int:
        """Change paths; `settings` are fields of PathSettings, such as delay_us, loss_ppm, rate_bits_s."""
        return self._change({"op": "set", "from": one, "to": other, "one_way": one_way, **settings})

    def stat(self) -> JsonObject:
        """Return {"paths": [one row per direction], "router": Router.state()}."""
        return self.ask({"op": "stat"})

    def stop(self) -> None:
        """End the bed and everything in it."""
        self.ask({"op": "stop"})

    def _change(self, request: JsonObject) -> int:
        at_ns = self.ask(request).get("at_ns")
        if not isinstance(at_ns, int):
            raise Unavailable("the test bed's answer does not say when: is it of another version?")
        return at_ns

    def ask(self, request: JsonObject) -> JsonObject:
        """Return the answer to a request.

        Raises:
            ConfigError: the bed refuses it. Unavailable: no answer within ANSWER_S.
        """
        address = self._directory.socket_path(self.record.plan.name)
        own = self._directory.reply_path()
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as asking:
            try:
                asking.bind(str(own))
                asking.settimeout(ANSWER_S)
                asking.sendto(dump_object(request), str(address))
                raw = asking.recv(ANSWER_BYTES_MAX)
                answer = parse_object(raw)
            except (OSError, FieldError) as error:
                raise Unavailable(f"the test bed {self.record.plan.name} does not answer: {error}") from error
            finally:
                own.unlink(missing_ok=True)
        refusal = answer.get("error")
        if refusal is not None:
            raise ConfigError(str(refusal))
        return answer

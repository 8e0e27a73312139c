"""A program that tests start inside a region: it sends or receives, and prints one JSON line.

udp-receive ADDRESS SECONDS             ready, then {"rows": [[number, delay_us], ...]} by the kernel's receive time
udp-send FROM TO COUNT PER_SECOND       each packet carries its number and the send time (wall clock, one machine)
tcp-receive ADDRESS SECONDS             ready, then {"bytes": n, "seconds": s, "first_s": s}
tcp-send FROM TO SECONDS                as fast as it can
tcp-connect FROM TO                     {"connect_ms": x}
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

PORT = 9_000
SO_TIMESTAMPNS = 35
STAMP = struct.Struct("<QQ")


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def udp_receive(address: str, seconds: str) -> None:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind((address, PORT))
    receiver.settimeout(0.1)
    say({"ready": True})
    rows = []
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        try:
            data, ancillary, _, _ = receiver.recvmsg(2_000, 100)
        except TimeoutError:
            continue
        number, sent_ns = STAMP.unpack_from(data)
        at_s, at_ns = struct.unpack("qq", ancillary[0][2])
        rows.append([number, (at_s * 1_000_000_000 + at_ns - sent_ns) / 1_000])
    say({"rows": rows})


def udp_send(source: str, destination: str, count: str, per_second: str) -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((source, 0))
    began, padding = time.monotonic(), bytes(184)
    for number in range(int(count)):
        ahead_s = began + number / float(per_second) - time.monotonic()
        if ahead_s > 0:
            time.sleep(ahead_s)
        sender.sendto(STAMP.pack(number, time.time_ns()) + padding, (destination, PORT))
    say({"sent": int(count)})


def tcp_receive(address: str, seconds: str) -> None:
    listener = socket.create_server((address, PORT))
    listener.settimeout(30)
    say({"ready": True})
    connection, _ = listener.accept()
    connection.settimeout(0.2)
    total, began, last = 0, time.monotonic(), time.monotonic()
    gaps = []
    while time.monotonic() - began < float(seconds):
        try:
            piece = connection.recv(1 << 20)
        except TimeoutError:
            continue
        if not piece:
            break
        now = time.monotonic()
        gaps.append((now - last, now - began))
        total, last = total + len(piece), now
    longest_s, ended_s = max(gaps, default=(0.0, 0.0))
    say({"bytes": total, "seconds": time.monotonic() - began, "longest_gap_s": longest_s, "gap_ended_s": ended_s})


def tcp_send(source: str, destination: str, seconds: str) -> None:
    connection = socket.create_connection((destination, PORT), source_address=(source, 0), timeout=30)
    block, deadline = bytes(1 << 18), time.monotonic() + float(seconds)
    connection.settimeout(30)
    try:
        while time.monotonic() < deadline:
            connection.sendall(block)
    except (ConnectionError, TimeoutError) as error:
        say({"ended": str(error)})
        return
    say({"ended": ""})


def tcp_connect(source: str, destination: str) -> None:
    began = time.monotonic()
    socket.create_connection((destination, PORT), source_address=(source, 0), timeout=30).close()
    say({"connect_ms": (time.monotonic() - began) * 1_000})


ROLES: dict[str, Callable[..., None]] = {
    "udp-receive": udp_receive,
    "udp-send": udp_send,
    "tcp-receive": tcp_receive,
    "tcp-send": tcp_send,
    "tcp-connect": tcp_connect,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])

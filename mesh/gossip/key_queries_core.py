"""The keyring commands that members send each other as questions (serf-wire 2.7): `serf keys`, `georelay keys`.

Rule: a list of keys that does not fit into one answer is cut, and the answer says so.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mesh.gossip.faults import GossipFault
from mesh.gossip.keyring import Keyring
from mesh.gossip.query_payloads import KeyRequest, KeyResponse

INSTALL_KEY: Final = "_serf_install-key"
USE_KEY: Final = "_serf_use-key"
REMOVE_KEY: Final = "_serf_remove-key"
LIST_KEYS: Final = "_serf_list-keys"
KEY_QUERIES: Final = frozenset({INSTALL_KEY, USE_KEY, REMOVE_KEY, LIST_KEYS})
NO_KEYRING: Final = "encryption is not configured for this member"


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """What to answer, and whether the keyring is another one now."""

    response: KeyResponse
    changed: bool = False


def answer_key_query(name: str, payload: bytes, keyring: Keyring | None) -> KeyAnswer:
    """Do what the question asks."""
    if keyring is None:
        return KeyAnswer(KeyResponse(result=False, text=NO_KEYRING))
    ring = keyring.keys()
    if name == LIST_KEYS:
        keys = [base64.b64encode(key).decode() for key in ring]
        return KeyAnswer(KeyResponse(result=True, keys=keys, primary=keys[0]))
    try:
        key = KeyRequest.decode(payload).key
        if name == INSTALL_KEY:
            keyring.install(key)
        elif name == USE_KEY:
            keyring.use(key)
        else:
            keyring.remove(key)
    except GossipFault as fault:
        return KeyAnswer(KeyResponse(result=False, text=str(fault)))
    return KeyAnswer(KeyResponse(result=True), changed=keyring.keys() != ring)


def cut_to(response: KeyResponse, *, room_bytes: int) -> KeyResponse:
    """Return the response with as many keys as fit into `room_bytes`."""
    keys: Sequence[str] = response.keys
    total = len(keys)
    while keys and len(response.encode()) > room_bytes:
        keys = keys[:-1]
        note = f"truncated: {len(keys)} of {total} keys"
        response = replace(response, keys=keys, text=note)
    return response

"""SCRAM: the vectors of RFC 7677, foreign clients as oracles, and what is refused."""

from __future__ import annotations

import base64
import warnings
from typing import Any

import pytest

from georelay.errors import Unauthenticated
from region.security.scram_core import (
    ClientFirst,
    ScramClient,
    ScramServer,
    fake_key,
    make_key,
    parse_client_first,
    password_matches,
)
from region.security.user import ITERATIONS_MIN, Mechanism, ScramKey

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the way it reads its own files
    from kafka.net.sasl.scram import ScramClient as KafkaPythonClient

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
BOTH = pytest.mark.parametrize("mechanism", list(Mechanism))


def key(mechanism: Mechanism = Mechanism.SCRAM_SHA_256, password: str = "pencil") -> ScramKey:
    return make_key(mechanism, password, salt=SALT, iterations=ITERATIONS_MIN)


def server(first: bytes = CLIENT_FIRST, *, is_known: bool = True, stored: ScramKey | None = None) -> ScramServer:
    return ScramServer(parse_client_first(first), stored or key(), is_known=is_known, nonce=SERVER_NONCE)


def test_the_exchange_of_rfc_7677_is_spoken_byte_for_byte() -> None:
    exchange = server()
    assert exchange.user == "user"
    assert exchange.server_first == SERVER_FIRST
    assert exchange.finish(CLIENT_FINAL) == SERVER_FINAL


def test_our_client_speaks_the_exchange_of_rfc_7677_too() -> None:
    client = ScramClient(mechanism=Mechanism.SCRAM_SHA_256, user="user", password="pencil", nonce=CLIENT_NONCE)
    assert (client.first, client.final(SERVER_FIRST)) == (CLIENT_FIRST, CLIENT_FINAL)


@BOTH
def test_the_client_of_kafka_python_signs_in_and_trusts_us(mechanism: Mechanism) -> None:
    client: Any = KafkaPythonClient("ann", "pencil", mechanism.value)
    exchange = server(client.first_message(), stored=key(mechanism))
    client.process_server_first_message(exchange.server_first)
    client.process_server_final_message(exchange.finish(client.final_message()))


@BOTH
def test_a_wrong_password_and_an_unknown_user_get_the_same_words(mechanism: Mechanism) -> None:
    texts = set()
    for stored, is_known in (
        (key(mechanism, "another"), True),
        (fake_key(mechanism, "user", secret=b"s", iterations=4096), False),
        (key(mechanism), False),  # even with the right proof: a key that is nobody's
    ):
        exchange = server(stored=stored, is_known=is_known)
        client = ScramClient(mechanism=mechanism, user="user", password="pencil", nonce=CLIENT_NONCE)
        with pytest.raises(Unauthenticated) as refused:
            exchange.finish(client.final(exchange.server_first))
        texts.add(str(refused.value))
    assert texts == {"wrong user or password"}


@BOTH
def test_the_salt_of_an_unknown_user_is_always_the_same_and_only_its_own(mechanism: Mechanism) -> None:
    def salt(user: str, secret: bytes = b"secret") -> bytes:
        return fake_key(mechanism, user, secret=secret).salt

    assert salt("ann") == salt("ann")
    assert len({salt("ann"), salt("bob"), salt("ann", b"other")}) == 3
    assert len(salt("ann")) == 16  # as long as the salts of users


def test_a_final_nonce_that_only_ends_with_ours_is_taken_as_librdkafka_sends_it() -> None:
    exchange = server()
    doubled = exchange.server_first.replace(b"r=", b"r=" + CLIENT_NONCE.encode())
    client = ScramClient(mechanism=Mechanism.SCRAM_SHA_256, user="user", password="pencil", nonce=CLIENT_NONCE)
    final = client.final(exchange.server_first)
    assert doubled.startswith(b"r=" + CLIENT_NONCE.encode() * 2)
    # The proof is over what is sent, so the doubled nonce needs its own proof.
    with pytest.raises(Unauthenticated, match="wrong user or password"):
        exchange.finish(final.replace(b",r=", b",r=" + CLIENT_NONCE.encode()))
    assert server().finish(_final_with_nonce(CLIENT_NONCE + CLIENT_NONCE + SERVER_NONCE)).startswith(b"v=")


def _final_with_nonce(nonce: str) -> bytes:
    import hashlib
    import hmac

    before = f"c=biws,r={nonce}"
    said = b",".join((CLIENT_FIRST[3:], SERVER_FIRST, before.encode()))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{before},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    "final",
    [
        CLIENT_FINAL.replace(b"hNlF$k0", b"hNlF$k1"),  # another nonce
        CLIENT_FINAL.replace(b"biws", b"eSws"),  # "y,,": another binding than at first
        CLIENT_FINAL.replace(b"p=d", b"p=e"),
        CLIENT_FINAL[:-4] + b"====",
        CLIENT_FINAL.replace(b"p=dHzb", b"p="),
        b"",
        b"\xff\xfe",
        b"c=biws",
        CLIENT_FINAL + b",x=1",
        b"x" * 5_000,
    ],
)
def test_a_final_message_that_is_not_right_is_refused(final: bytes) -> None:
    with pytest.raises(Unauthenticated):
        server().finish(final)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",  # channel binding is not served
        b"n,a=other,n=user,r=abc",  # acting for another user
        b"n,,n=us=er,r=abc",  # a bare equals sign
        b"n,,m=must,n=user,r=abc",  # an extension that must be understood
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user",
        b"",
        b"\xff",
        b"n,,n=user,r=" + b"a" * 600,
    ],
)
def test_a_first_message_that_is_not_right_is_refused_without_repeating_it(first: bytes) -> None:
    with pytest.raises(Unauthenticated) as refused:
        parse_client_first(first)
    assert "user" not in str(refused.value).replace("another user", "").replace("SCRAM user name", "")


def test_commas_and_equals_signs_in_names_are_read_as_written() -> None:
    first = parse_client_first(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc,tokenauth=true")
    assert first == ClientFirst(
        user="a,b=c", nonce="abc", gs2_header="n,a=a=2Cb=3Dc,", bare="n=a=2Cb=3Dc,r=abc,tokenauth=true"
    )


def test_a_password_that_was_sent_is_checked_against_the_same_key() -> None:
    assert password_matches(key(), "pencil")
    assert not password_matches(key(), "pencil ")


def test_a_key_shows_nothing_of_itself() -> None:
    shown = repr(key())
    assert "SCRAM_SHA_256" in shown
    assert key().stored_key.hex() not in shown and "stored_key" not in shown and "salt" not in shown

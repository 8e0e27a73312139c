"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): users for Kafka's admin clients.

Rule 1: only mechanisms and iterations are shown; clients send a salted password, which is a key to be stored, and is
        never logged.
Rule 2: a user twice in one request is refused; every user has its own outcome.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from georelay.errors import GeorelayError
from georelay.wire.api import ErrorCode
from georelay.wire.scram_users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from region.kafka.connection import Slot
from region.kafka.error_map import RowRefused, kafka_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource
from region.security.administration import SecurityAdmin
from region.security.scram_core import key_of_salted
from region.security.user import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, SALT_BYTES_MIN, Mechanism, ScramKey

MECHANISMS: Final = {mechanism.kafka_code: mechanism for mechanism in Mechanism}
DISABLED: Final = "this broker keeps no users"


class ScramUsersHandler:
    """Answers both requests."""

    def __init__(self, services: KafkaServices) -> None:
        self._admin = services.security
        self._access = services.access

    def describe(self, slot: Slot, request: DescribeUserScramCredentialsRequest) -> None:
        """Answer with the mechanisms of users."""
        if self._admin is None:
            code = ErrorCode.SECURITY_DISABLED
            slot.answer(DescribeUserScramCredentialsResponse(error_code=code, error_message=DISABLED))
            return
        try:
            users = {user.name: user for user in self._admin.users(slot.connection.principal) if user.keys}
        except GeorelayError as error:
            slot.answer(DescribeUserScramCredentialsResponse(error_code=kafka_code(error), error_message=str(error)))
            return
        asked = Counter(user.name for user in request.users) if request.users else Counter(users.keys())
        results = []
        for name, times in asked.items():
            if times > 1:
                results.append(_described(name, ErrorCode.DUPLICATE_RESOURCE, "the user stands twice in the request"))
            elif name not in users:
                results.append(_described(name, ErrorCode.RESOURCE_NOT_FOUND, "there is no user of that name"))
            else:
                infos = [CredentialInfo(key.mechanism.kafka_code, key.iterations) for key in users[name].keys]
                results.append(DescribeUserScramCredentialsResult(name, credential_infos=infos))
        slot.answer(DescribeUserScramCredentialsResponse(results=results))

    def alter(self, slot: Slot, request: AlterUserScramCredentialsRequest) -> None:
        """Give users keys, or take them away."""
        names = dict.fromkeys([row.name for row in request.deletions] + [row.name for row in request.upsertions])
        if self._admin is None:
            code = ErrorCode.SECURITY_DISABLED
            rows = [AlterUserScramCredentialsResult(name, code, DISABLED) for name in names]
            slot.answer(AlterUserScramCredentialsResponse(results=rows))
        else:
            slot.spawn(self._altered(self._admin, slot.connection.principal, request, list(names)))

    async def _altered(
        self,
        admin: SecurityAdmin,
        principal: Principal,
        request: AlterUserScramCredentialsRequest,
        names: list[str],
    ) -> AlterUserScramCredentialsResponse:
        rows = []
        for name in names:
            try:
                await self._alter(admin, principal, request, name)
            except (RowRefused, GeorelayError) as error:
                rows.append(AlterUserScramCredentialsResult(name, kafka_code(error), str(error)))
            else:
                rows.append(AlterUserScramCredentialsResult(name))
        return AlterUserScramCredentialsResponse(results=rows)

    async def _alter(
        self, admin: SecurityAdmin, principal: Principal, request: AlterUserScramCredentialsRequest, name: str
    ) -> None:
        self._access.check(principal, Operation.ALTER, Resource.CLUSTER)
        deletions = [_mechanism(row.mechanism) for row in request.deletions if row.name == name]
        upsertions = [row for row in request.upsertions if row.name == name]
        named = deletions + [_mechanism(row.mechanism) for row in upsertions]
        if len(set(named)) != len(named):
            raise RowRefused(ErrorCode.DUPLICATE_RESOURCE, "a mechanism of the user stands twice in the request")
        if deletions and not upsertions:
            known = next((user for user in admin.users(principal) if user.name == name), None)
            if known is None or any(known.key_for(mechanism) is None for mechanism in deletions):
                raise RowRefused(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such mechanism")
        await admin.put_keys(principal, name, [_key(row) for row in upsertions], without=deletions)


def _described(name: str, code: ErrorCode, text: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(name, code, text)


def _mechanism(code: int) -> Mechanism:
    mechanism = MECHANISMS.get(code)
    if mechanism is None:
        raise RowRefused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {code} is unknown")
    return mechanism


def _key(row: ScramCredentialUpsertion) -> ScramKey:
    mechanism = _mechanism(row.mechanism)
    if not ITERATIONS_MIN <= row.iterations <= ITERATIONS_MAX:
        text = f"iterations must be {ITERATIONS_MIN}..{ITERATIONS_MAX}"
        raise RowRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if len(row.salted_password) != mechanism.key_bytes:
        text = f"a salted password of {mechanism} has {mechanism.key_bytes} bytes"
        raise RowRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if not SALT_BYTES_MIN <= len(row.salt) <= SALT_BYTES_MAX:
        raise RowRefused(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"a salt has {SALT_BYTES_MIN}..{SALT_BYTES_MAX} bytes")
    return key_of_salted(mechanism, bytes(row.salted_password), salt=bytes(row.salt), iterations=row.iterations)

"""Users that sign in with SCRAM: requests and responses as tables.

Field names are Kafka's (schemas DescribeUserScramCredentials, AlterUserScramCredentials; KIP-554). Mechanism 1 is
SCRAM-SHA-256, 2 is SCRAM-SHA-512. What a password can be tried against is never shown, not even by `repr`.
"""

from __future__ import annotations

from collections.abc import Sequence

from georelay.wire.schema import I8, I16, I32, Bytes, Str, struct


@struct
class UserName:
    """A user."""

    name: Str


@struct
class DescribeUserScramCredentialsRequest:
    """Show which mechanisms users have; null or empty asks for all users."""

    users: Sequence[UserName] | None = None


@struct
class CredentialInfo:
    """A mechanism and its iterations."""

    mechanism: I8
    iterations: I32


@struct
class DescribeUserScramCredentialsResult:
    """The mechanisms of one user."""

    user: Str
    error_code: I16 = 0
    error_message: Str | None = None
    credential_infos: Sequence[CredentialInfo] = ()


@struct
class DescribeUserScramCredentialsResponse:
    """Answer to DescribeUserScramCredentials."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Str | None = None
    results: Sequence[DescribeUserScramCredentialsResult] = ()


@struct
class ScramCredentialDeletion:
    """Take a mechanism away from a user."""

    name: Str
    mechanism: I8


@struct
class ScramCredentialUpsertion:
    """Give a user a password, salted and hashed by the client. Holds a secret: never log it."""

    name: Str
    mechanism: I8
    iterations: I32
    salt: Bytes
    salted_password: Bytes

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion({self.name!r}, {self.mechanism}, {self.iterations}, <secret>)"


@struct
class AlterUserScramCredentialsRequest:
    """Change the mechanisms of users."""

    deletions: Sequence[ScramCredentialDeletion] = ()
    upsertions: Sequence[ScramCredentialUpsertion] = ()


@struct
class AlterUserScramCredentialsResult:
    """What became of the changes of one user."""

    user: Str
    error_code: I16 = 0
    error_message: Str | None = None


@struct
class AlterUserScramCredentialsResponse:
    """Answer to AlterUserScramCredentials."""

    throttle_time_ms: I32 = 0
    results: Sequence[AlterUserScramCredentialsResult] = ()

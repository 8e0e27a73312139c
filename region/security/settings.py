"""The `security` section of a broker's configuration."""

from __future__ import annotations

import enum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from region.security.rules import Authorization

SUPER_USERS_MAX = 100
STRANGERS: Final = (
    "whoever connects to listen.peers or listen.link on this machine is taken for a broker: set mesh_secret_file, the "
    "same file for every broker of the mesh (openssl rand -hex 32 > FILE; chmod 600 FILE), or certificates in [tls]"
)
SuperUser = Annotated[str, StringConstraints(pattern=r"^User:.{1,1024}$")]


class SignInPolicy(enum.StrEnum):
    """The setting `security.sign_in`."""

    AUTO = "auto"  # as soon as there is a user
    REQUIRED = "required"


class SecuritySection(BaseModel):
    """Who may do what.

    Args:
        authorization: "auto" enforces the access control lists as soon as a listener is off loopback or there is a
            user; "on" always; "off" never.
        sign_in: "required" asks clients for credentials although there are no users yet.
        super_users: principals that may do everything, "User:<name>". Left out: the users of users_file.
        audit_file: where events of security go besides the log; "" for nowhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    authorization: Authorization = Authorization.AUTO
    sign_in: SignInPolicy = SignInPolicy.AUTO
    super_users: Annotated[list[SuperUser], Field(max_length=SUPER_USERS_MAX)] | None = None
    audit_file: str = ""

    @property
    def sign_in_needed(self) -> bool:
        """Return whether clients must sign in, users or not."""
        return self.sign_in is SignInPolicy.REQUIRED

"""What the gateway needs to know about users; georelay.credentials.Credentials satisfies it."""

from __future__ import annotations

from typing import Protocol


class SignIn(Protocol):
    """Checks `authorization` headers without blocking the event loop."""

    @property
    def required(self) -> bool:
        """Return whether clients must sign in."""

    async def authenticate_header(self, authorization: str | None) -> str:
        """Return the user's name (Unauthenticated: missing or wrong)."""

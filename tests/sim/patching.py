"""Attributes of the shipping code, replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give `owner` another attribute while the context is open."""
    own = vars(owner).get(name)
    had = name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, own)
        else:
            delattr(owner, name)

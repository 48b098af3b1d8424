"""Tokens, codes and passwords: how they are drawn, and how they are kept."""

from __future__ import annotations

import hashlib
import secrets
from functools import cache
from typing import TYPE_CHECKING

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

if TYPE_CHECKING:
    pass

_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Without characters that are easily confused when a code is read off a wall."""


def new_token() -> str:
    """256 random bits, for a program to keep."""
    return secrets.token_urlsafe(32)


def new_code() -> str:
    """A join code for people to type, such as `K7QM-X2DF-9RHT` (59 bits)."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(3))


def plain_code(typed: str) -> str:
    """A code as it was drawn, however it was typed."""
    letters = "".join(char for char in typed.upper() if char.isalnum())[:12]
    return "-".join(letters[start : start + 4] for start in range(0, len(letters), 4))


def digest(token: str) -> str:
    """What is stored of a token. It has 256 bits of its own, so that a plain SHA-256 cannot be
    turned round.
    """
    return hashlib.sha256(token.encode()).hexdigest()


@cache
def _hasher() -> PasswordHasher:

    return PasswordHasher()


def hash_password(password: str) -> str:
    """An argon2id hash with its salt and parameters."""
    return _hasher().hash(password)


def password_is(stored: str | None, password: str) -> bool:
    """Whether the password is the stored one. Takes as long where there is none, so that nobody
    learns which names have one.
    """

    try:
        return _hasher().verify(stored or _nobodys(), password) and stored is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hash_password(secrets.token_hex(16))

"""Tokens, codes and passwords: how they are drawn, and how they are kept."""

from __future__ import annotations

import hashlib
import secrets
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Without characters that are easily confused when a code is read off a wall."""
_CODE_LETTERS = 12


def new_token() -> str:
    """Return 256 random bits, for a program to keep."""
    return secrets.token_urlsafe(32)


def new_code() -> str:
    """Return a new join code for people to type, such as `K7QM-X2DF-9RHT` (59 bits)."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(3))


def plain_code(typed: str) -> str:
    """Return a code as it was drawn, however it was typed."""
    letters = "".join(char for char in typed.upper() if char.isalnum())[:_CODE_LETTERS]
    return "-".join(letters[start : start + 4] for start in range(0, len(letters), 4))


def is_code(typed: str) -> bool:
    """Return True for a join code, however it was typed; False for a link's token."""
    return sum(map(str.isalnum, typed)) <= _CODE_LETTERS


def digest(token: str) -> str:
    """Return the form in which a token is stored.

    A token has 256 random bits, so a plain SHA-256 cannot be inverted by trying them.
    """
    return hashlib.sha256(token.encode()).hexdigest()


@cache
def _hasher() -> PasswordHasher:
    return PasswordHasher()


def hash_password(password: str) -> str:
    """Return an argon2id hash with its salt and parameters."""
    return _hasher().hash(password)


def password_is(stored: str | None, password: str) -> bool:
    """Return True if the password is the stored one; `stored` is None for an unknown name."""
    try:
        # An unknown name costs a verification too: the time an answer takes would tell which
        # names exist.
        return _hasher().verify(stored or _nobodys_hash(), password) and stored is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _nobodys_hash() -> str:
    return hash_password(secrets.token_hex(16))

"""Limits and access rules of the server; they import neither torch nor starlette."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from mnemo.errors import MnemoError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    host: str = "127.0.0.1"
    """Address to listen on"""
    port: int = 8000
    """0: any free port"""
    api_key: str | None = None
    """Key that every request must send, except those of `/health`; None: no key"""
    allowed_hosts: tuple[str, ...] = ()
    """Further names in the Host header that are accepted, without a port"""
    allowed_origins: tuple[str, ...] = ()
    """Web pages of these origins (such as https://example.org) may use the server: CORS"""
    max_body_bytes: int = 16 << 20
    """Largest JSON body of a request"""
    max_upload_bytes: int = 4 << 30
    """Largest body of any request: texts and memory files for sessions"""
    max_requests: int = 256
    """Requests that compute or wait for their turn; further ones are refused with 429"""
    max_tokens: int = 16_384
    """Largest `max_tokens` of a request"""
    max_choices: int = 64
    """Largest number of continuations of a request: prompts times n"""
    session_memory_bytes: int = 1 << 30
    """Memory for the states of sessions; the others are on disk"""
    max_sessions: int = 10_000
    request_seconds: float = 600.0
    """Time limit of a completion"""
    upload_seconds: float = 60.0
    """Time limit for receiving a JSON body"""
    shutdown_seconds: float = 30.0
    """Time that running requests have to finish when the server is stopped"""

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.api_key:
            raise MnemoError(
                f"--host {self.host} can be reached from other machines and needs a key: give --api-key KEY, or set "
                "the environment variable MNEMO_API_KEY"
            )
        if self.api_key is not None and (not self.api_key or not self.api_key.isascii() or " " in self.api_key):
            raise MnemoError("an API key consists of ASCII characters without spaces")
        if not 0 <= self.port < 1 << 16:
            raise MnemoError(f"port {self.port} is not between 0 and 65535")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise MnemoError(f"{name} {getattr(self, name)} is less than {least}")


LEAST = {
    "max_body_bytes": 1,
    "max_upload_bytes": 1,
    "max_requests": 1,
    "max_tokens": 1,
    "max_choices": 1,
    "session_memory_bytes": 1,
    "max_sessions": 1,
    "request_seconds": 0,
    "upload_seconds": 0,
    "shutdown_seconds": 0,
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

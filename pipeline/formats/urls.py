"""Addresses of object stores and web servers, and the fsspec filesystems behind them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from ..errors import MissingDependencyError, UsageError

__all__ = ["kind_of_error", "open_store", "protocol_of", "without_query"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LOCAL = {"file", "local"}
_INSTALL = {"s3": "s3", "s3a": "s3"}
_MODULES = {"s3": "s3fs", "s3a": "s3fs"}


def protocol_of(text: str) -> str | None:
    """The protocol of a URL in lower case; None for anything that is no URL, or a local one."""
    found = _URL.match(text)
    protocol = found[1].lower() if found else None
    return None if protocol in _LOCAL else protocol


def without_query(url: str) -> str:
    """The URL as it may be published: without user, query and fragment, which hold the secrets of signed URLs."""
    head, _, rest = url.partition("://")
    if protocol_of(url) not in ("http", "https"):
        # A question mark or hash may be part of an object's name elsewhere.
        return url
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{head}://{host.rpartition('@')[2]}{slash}{path}"


def kind_of_error(error: Exception) -> str:
    """The kind of an error, and its system or HTTP code; never its text."""
    code = getattr(error, "status", None) or getattr(error, "errno", None)
    return f"{type(error).__name__}" + (f" {code}" if isinstance(code, int) else "")


def open_store(protocol: str) -> Any:
    """The fsspec filesystem of a protocol.

    Raises:
        MissingDependencyError: the library for it is not installed.
        UsageError: there is no such protocol, or its settings are wrong.
    """
    filesystem: Callable[..., Any] = importlib.import_module("fsspec").filesystem
    try:
        # A cached directory listing would hide what changed since.
        return filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        extra = _INSTALL.get(protocol)
        raise MissingDependencyError(
            f"reading {protocol}:// needs {_MODULES.get(protocol, 'another library')}",
            got=str(error),
            remedy=f"Run: pip install 'wellfed[{extra}]'" if extra else "Install what the message names.",
        ) from error
    except Exception as error:
        raise UsageError(
            f"{protocol}:// must be a store that fsspec can open", got=kind_of_error(error), remedy="Check the address."
        ) from error

"""Requests and grants whose terms are said beside their other fields, to keep tests short."""

from typing import Any, TypeVar

from oci_hook.core.grant import Grant
from oci_hook.core.request import Request
from oci_hook.core.terms import Terms

V = TypeVar("V", Request, Grant)


def picked(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of Terms, the others)."""
    return {n: v for n, v in fields.items() if n in Terms.FIELDS}, {
        n: v for n, v in fields.items() if n not in Terms.FIELDS
    }


def made(kind: type[V], *values: Any, **fields: Any) -> V:
    """A value with these terms and other fields."""
    terms, rest = picked(fields)
    return kind(*values, terms=Terms(**terms), **rest)


def changed(value: V, **changes: Any) -> V:
    """A copy with these terms and other fields."""
    terms, rest = picked(changes)
    return value.replace(terms=value.terms.replace(**terms), **rest)

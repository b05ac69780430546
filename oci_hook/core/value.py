"""The base of all value classes: each field is written once, as an annotation; equal by content, not to be changed.

Not dataclasses or NamedTuple: the hot path defines these classes at every container start, and importing dataclasses,
enum or typing takes longer than defining all of them.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    V = TypeVar("V", bound="Value")
else:

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Value:
    """A record. The annotations of its class are the fields, in order; what is assigned to one is its default. Fields
    without a default come first. Quote an annotation that names what only type checkers import: Python evaluates it.

    FIELDS: the names of the fields.
    """

    FIELDS: "tuple[str, ...]" = ()
    _blank: "dict[str, Any]" = {}  # every field with its default, or None; made with the first value of the class
    _required = 0  # so many fields have no default

    def __init_subclass__(cls) -> None:
        cls.FIELDS = tuple(cls.__annotations__)

    @classmethod
    def _defaults(cls) -> "dict[str, Any]":
        own = cls.__dict__
        cls._blank = {name: own.get(name) for name in cls.FIELDS}
        cls._required = sum([name not in own for name in cls.FIELDS])
        return cls._blank

    def __init__(self, *values: "Any", **named: "Any") -> None:
        """The fields in order, or by name. Raises TypeError for one that is missing, unknown or given twice."""
        fields, given, record = self.FIELDS, len(values), self.__dict__
        if given == len(fields) and not named:
            record.update(zip(fields, values))  # noqa: B905  (they are of one length)
            return
        if named or given < len(fields):
            record.update(self._blank or self._defaults())  # first: every record then has its fields in the same order
        record.update(zip(fields, values))  # noqa: B905  (the lengths are compared below)
        if named:
            record.update(named)
        if given > len(fields) or len(record) > len(fields):
            unknown = ", ".join(sorted(record.keys() - set(fields))) or "further field"
            raise TypeError(f"{type(self).__name__} has no {unknown}; its fields are {', '.join(fields)}")
        if named and not named.keys().isdisjoint(fields[:given]):
            raise TypeError(f"{type(self).__name__}: a field is given twice")
        if given < self._required and not named.keys() >= set(fields[given : self._required]):
            raise TypeError(f"{type(self).__name__} needs {', '.join(fields[: self._required])}")

    def fields(self) -> "dict[str, Any]":
        """The fields as a dict of the caller's own, in order."""
        return dict(self.__dict__)

    def replace(self: "V", **changes: "Any") -> "V":
        """A changed copy. Raises TypeError for an unknown field."""
        return type(self)(**{**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

"""The kubelet's messages: pluginregistration v1 and dra v1, v1beta1, whose api.proto have the numbers. Protocol Buffers' wire
format, of which they need varints and lengths alone (protobuf.dev/programming-guides/encoding)."""

from collections.abc import Iterator, Mapping

from oci_hook.core.value import Value
from oci_hook.ledger.resource_claims import ClaimedDevice

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
MAX_CLAIMS = 256  # of a pod, of which the API server admits 64
PLUGIN_TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class ClaimName(Value):
    """A claim as the kubelet names it."""

    namespace: str
    uid: str
    name: str


class Prepared(Value):
    """The answer for one claim. devices: each with the ids of its CDI devices. error: "" where it is prepared."""

    devices: tuple[tuple[ClaimedDevice, tuple[str, ...]], ...] = ()
    error: str = ""


def plugin_info(name: str, endpoint: str) -> bytes:
    fields = [text(1, PLUGIN_TYPE), text(2, name), text(3, endpoint), *(text(4, version) for version in VERSIONS)]
    return b"".join(fields)


def registration_status(data: bytes) -> tuple[bool, str]:
    """(registered, the error). Raises ValueError."""
    registered, error = False, b""
    for number, value in parts(data):
        if number == 1 and isinstance(value, int):
            registered = bool(value)
        elif number == 2 and isinstance(value, bytes):
            error = value
    return registered, error.decode("utf-8", "replace")


def claim_names(data: bytes) -> list[ClaimName]:
    """The claims of NodePrepareResourcesRequest and NodeUnprepareResourcesRequest. Raises ValueError."""
    found: list[ClaimName] = []
    for number, value in parts(data):
        if number != 1:
            continue
        if not isinstance(value, bytes) or len(found) == MAX_CLAIMS:
            raise ValueError("not a list of claims, or too long")
        fields = {n: v.decode() for n, v in parts(value) if isinstance(v, bytes)}
        found.append(ClaimName(fields.get(1, ""), fields.get(2, ""), fields.get(3, "")))
    return found


def prepared(answers: Mapping[str, Prepared]) -> bytes:
    """NodePrepareResourcesResponse. answers: by the claim's uid."""
    return _by_uid({uid: _prepared(answer) for uid, answer in answers.items()})


def unprepared(errors: Mapping[str, str]) -> bytes:
    """NodeUnprepareResourcesResponse. errors: by the claim's uid, "" where it is unprepared."""
    return _by_uid({uid: text(1, error) for uid, error in errors.items()})


def _prepared(answer: Prepared) -> bytes:
    devices = b""
    for device, ids in answer.devices:
        fields = [text(1, device.request), text(2, device.pool), text(3, device.device), *(text(4, id) for id in ids)]
        devices += chunk(1, b"".join([*fields, text(5, device.share)]))
    return devices + text(2, answer.error)


def _by_uid(values: Mapping[str, bytes]) -> bytes:
    return b"".join(chunk(1, text(1, uid) + chunk(2, value)) for uid, value in values.items())


def text(number: int, value: str) -> bytes:
    return chunk(number, value.encode("utf-8", "replace")) if value else b""


def chunk(number: int, data: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def parts(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of each field in their order. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED_32, FIXED_64):
            size = 4 if kind == FIXED_32 else 8
        else:
            raise ValueError("a field of unknown kind")
        if size > len(data) - at:
            raise ValueError("a field is cut short")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at + shift // 7
    raise ValueError("a number is cut short or too long")

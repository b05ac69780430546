"""The pods of a manifest: the workloads of known kinds, expanded."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from oci_hook.core.units import show
from oci_hook.errors import Problem, RequestError
from oci_hook.kube.answers.gang import Role, check_size, role_of
from oci_hook.kube.manifests import kinds
from oci_hook.kube.pod.mutate import WebhookOptions

MAX_SIZE = 1 << 20  # characters
MAX_VALUES = 4 << 20  # and characters
MAX_DEPTH = 8  # lists of lists
Part = tuple[str, int, Mapping[str, Any]]  # (name, count, PodTemplateSpec)


def roles(
    text: str, options: WebhookOptions, namespace: str = "default", left_out: "set[str] | None" = None
) -> list[Role]:
    """left_out: receives the kinds that are no known workload. Raises RequestError GH-107."""
    if len(text) > MAX_SIZE:
        raise _refuse(f"has more than {MAX_SIZE} characters")
    try:
        documents = [one for one in yaml.load_all(text, _Loader) if one is not None]
        many = unfolded(documents, {}) > MAX_VALUES
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        line = getattr(getattr(e, "problem_mark", None), "line", None)
        raise _refuse("is no YAML" + (f": line {line + 1}" if line is not None else "")) from None
    if many:
        raise _refuse(f"has aliases that unfold to more than {MAX_VALUES} values and characters")
    found: list[Role] = []
    total = kinds = 0
    obj: Mapping[str, Any] = {}
    try:
        for obj in objects(documents):
            meta = obj.get("metadata") or {}
            known = list(parts(obj))
            if left_out is not None and not known:
                left_out.add(named_kind(obj))
            for name, count, template in known:
                kinds, total = kinds + 1, total + count
                check_size(kinds, total)
                found.append(role_of(name, str(meta.get("namespace") or namespace), count, template, options))
    except ValueError as e:
        raise _refuse(str(e)) from None
    except KeyError as e:
        raise _refuse(f"lacks {e} in a {named_kind(obj)}") from None
    except (TypeError, AttributeError):
        raise _refuse(
            f"has a value of the wrong kind in a {named_kind(obj)}; `kubectl apply --dry-run=server` says where"
        ) from None
    if not found:
        found_only = f", but {', '.join(sorted(left_out)[:3])}" if left_out else ""
        raise _refuse(f"has no workload of a known kind{found_only}; write a Pod, Job or Deployment")
    return found


def named_kind(obj: Mapping[str, Any]) -> str:
    """The object's kind, quoted for people, since it may be any text."""
    kind = obj.get("kind")
    return show(kind) if isinstance(kind, str) and kind else "document"


class _Loader(yaml.SafeLoader):
    """Bounds merge keys (<<): nested ones expand while the text is read."""

    merged = 0

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > MAX_VALUES // 16:
            raise yaml.YAMLError("too many merge keys")


def unfolded(value: Any, known: dict[int, int]) -> int:
    """The number of values and characters with each alias expanded; more than MAX_VALUES for an alias within itself. known: by id."""
    if not isinstance(value, (dict, list)):
        return 1 + len(value) if isinstance(value, str) else 1
    if id(value) not in known:
        known[id(value)] = MAX_VALUES + 1  # while its parts are counted
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(unfolded(one, known) for one in inside)
    return known[id(value)]


def objects(documents: list[Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    for one in documents:
        if not isinstance(one, dict):
            raise ValueError("has a document that is no object")
        if str(one.get("kind") or "").endswith("List") and isinstance(one.get("items"), list):
            if depth == MAX_DEPTH:
                raise ValueError(f"has lists in lists, deeper than {MAX_DEPTH}")
            yield from objects(one["items"], depth + 1)
        else:
            yield one


def parts(obj: Mapping[str, Any]) -> Iterator[Part]:
    """The object's pods; none for an unknown kind."""
    kind = str(obj.get("kind"))
    name = str((obj.get("metadata") or {}).get("name") or kind.lower())
    paths = () if kind in kinds.NOT_COUNTED else kinds.paths(obj.get("apiVersion"), kind)
    found = list(kinds.templates(obj, paths, _get, _each))
    if paths and not found and not kinds.is_optional(obj.get("apiVersion"), kind):
        raise KeyError(paths[0][-1])
    for part, above, template in found:
        yield f"{name}/{part}" if part else name, kinds.count(above, template, _count), template


def _get(node: Any, key: str) -> Any:
    return node.get(key)


def _each(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((str(key), value) for key, value in node.items() if value is not None)
        return
    for number, one in enumerate(node):
        yield str(next((one[key] for key in kinds.NAMES if one.get(key)), number)), one


def _count(spec: Mapping[str, Any], key: str) -> int:
    count = spec.get(key)
    if count is None:
        return 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"has {key} that is no number of pods")
    return count


def _refuse(why: str) -> RequestError:
    return RequestError(Problem("GH-107", f"the manifest {why}"))

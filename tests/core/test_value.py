from oci_hook.core.grant import Life, Share


def test_equal_by_content_and_class() -> None:
    assert Share("GPU-a", 1) == Share("GPU-a", 1, 0, 100, False)
    assert Share("GPU-a", 1) != Share("GPU-a", 2)
    assert Life("b") != Share("b", 1)
    assert hash(Share("GPU-a", 1)) == hash(Share("GPU-a", 1))


def test_replace_changes_a_copy() -> None:
    a = Share("GPU-a", 1)
    b = a.replace(memory_mib=5)
    assert (a.memory_mib, b.memory_mib, b.uuid) == (1, 5, "GPU-a")


def test_repr_names_the_fields() -> None:
    assert (
        repr(Share("GPU-a", 1))
        == "Share(uuid='GPU-a', memory_mib=1, compute=0, compute_limit=100, whole=False, slot=0)"
    )

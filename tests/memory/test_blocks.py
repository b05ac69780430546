"""A driver that takes linear memory in blocks of 2 MiB: what is charged is what it takes."""

from collections.abc import Callable

import pytest

from tests.memory.conftest import LIMIT, MIB, Node

pytestmark = pytest.mark.root
BLOCK = 2 * MIB
FILL = "cu.init(); n = 0\nwhile not cu.alloc({size})[0]: n += 1\nsay(n); wait()"


@pytest.mark.parametrize(
    ("size", "most"),
    [
        (BLOCK // 2 + 512, LIMIT // BLOCK),  # each has a block for itself
        (BLOCK + 512, LIMIT // BLOCK // 2),
        (700 << 10, LIMIT // BLOCK * 2),  # two share one
        (BLOCK, LIMIT // BLOCK),
        (256 << 10, LIMIT // BLOCK * 8),
    ],
)
def test_pieces_of_every_size_hold_no_more_than_the_limit(make_node: Callable[..., Node], size: int, most: int) -> None:
    node = make_node(block=BLOCK)
    box = node.container()
    program = box.start(FILL.format(size=size))
    assert program.line() == str(most)
    assert LIMIT - BLOCK < node.held() == box.charged() <= LIMIT
    program.kill()
    program = box.start(f"cu.init(); r, p = cu.alloc({size}); say(r); wait(); say(cu.free(p), cu.info()[0]); wait()")
    assert program.line() == "0"
    assert node.held() == box.charged() > 0
    assert program.ask() == f"0 {LIMIT}"


def test_rows_are_rounded_as_a_whole(make_node: Callable[..., Node]) -> None:
    node = make_node(block=BLOCK)
    box = node.container()
    program = box.start(
        "cu.init(); p, pitch = c_uint64(), c_size_t()\n"
        "say(lib.cuMemAllocPitch_v2(byref(p), byref(pitch), c_size_t(1000), c_size_t(1100), 4)); wait()"
    )
    assert program.line() == "0"
    assert node.held() == box.charged() == BLOCK


def test_a_driver_that_takes_what_is_asked_for(node: Node) -> None:
    box = node.container()
    assert box.start(FILL.format(size=BLOCK // 2 + 512)).line() == str(LIMIT // (BLOCK // 2 + 512))

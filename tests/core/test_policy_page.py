"""The policy page: Python's packer and C's header must mean the same bytes."""

import json
import subprocess
from pathlib import Path

import pytest

from oci_hook.core import policy_page
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.terms import Terms
from testbed.compiled import ZIG

SHIM = Path(__file__).resolve().parents[2] / "oci_hook" / "shim"

READER = r"""
#include <stdio.h>
#include "pages/policy_page.h"
int main(int argc, char **argv) {
    static struct gh_policy_page p;
    FILE *f = fopen(argv[argc - 1], "rb");
    if (!f || fread(&p, 1, sizeof p, f) != sizeof p) return 1;
    printf("{\"magic\": %d, \"version\": %u, \"size\": %u, \"seq\": %u, \"ngpus\": %u, \"policy\": %u, \"class\": %u, "
           "\"key\": \"%.40s\", \"gpus\": [", p.magic == GH_POLICY_MAGIC, p.version, p.size, p.seq, p.ngpus, p.policy,
           p.class_, p.key);
    for (unsigned i = 0; i < p.ngpus; i++)
        printf("%s[\"%.48s\", %llu, %llu, %u, %u, %u, %u, %llu, %u]", i ? ", " : "", p.gpu[i].uuid,
               (unsigned long long)p.gpu[i].memory_limit, (unsigned long long)p.gpu[i].memory_total,
               p.gpu[i].compute, p.gpu[i].compute_limit, p.gpu[i].flags, p.gpu[i].minor,
               (unsigned long long)p.gpu[i].context_bytes, p.gpu[i].block_bytes);
    printf("]}\n");
    return 0;
}
"""


def example(count: int) -> tuple[Grant, Inventory]:
    uuid = "GPU-{:08d}-0000-0000-0000-000000000000"
    gpus = tuple(Gpu(uuid.format(i), i, i + 3, 24576, context_mib=i * 500, block_bytes=i << 21) for i in range(count))
    shares = tuple(Share(c.uuid, (1000, 24576)[i == 1], 30, 80, whole=i == 1) for i, c in enumerate(gpus))
    grant = Grant(
        "k" * 32,
        Identity("/r", "c", "/b"),
        Life("boot"),
        shares,
        terms=Terms(policy="fixed-share", priority_class="online"),
    )
    return grant, Inventory("boot", "550", "/", True, gpus, (), (), "", "")


def test_c_reads_what_python_wrote(tmp_path: Path) -> None:
    grant, inventory = example(2)
    (tmp_path / "page").write_bytes(policy_page.policy_page(grant, inventory, seq=6))
    (tmp_path / "reader.c").write_text(READER)
    subprocess.run([*ZIG, "-I", str(SHIM), "-o", tmp_path / "reader", tmp_path / "reader.c"], check=True)
    said = json.loads(subprocess.run([tmp_path / "reader", tmp_path / "page"], check=True, capture_output=True).stdout)
    mib = 1 << 20
    assert said == {
        "magic": 1,
        "version": 1,
        "size": 4096,
        "seq": 6,
        "ngpus": 2,
        "policy": 1,
        "class": 2,
        "key": "k" * 32,
        "gpus": [
            [grant.shares[0].uuid, 1000 * mib, 24576 * mib, 30, 80, 0, 3, 0, 0],
            [grant.shares[1].uuid, 24576 * mib, 24576 * mib, 30, 80, 1, 4, 500 * mib, 2 * mib],
        ],
    }


def test_a_page_is_one_page_up_to_its_last_gpu() -> None:
    assert len(policy_page.policy_page(*example(0))) == len(policy_page.policy_page(*example(16))) == 4096
    with pytest.raises(ValueError, match="17 GPUs"):
        policy_page.policy_page(*example(17))

"""cuda-core: devices, streams, events, each memory resource, a linked kernel, graphs."""

import ctypes

from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    StreamOptions,
    VirtualMemoryResource,
    launch,
    system,
)
from steps import outcome, said

MIB = 1 << 20
PTX = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n"


def free_mib() -> int:
    return int(driver.cuMemGetInfo()[1]) // MIB


def until_refused(resource, stream) -> None:  # type: ignore[no-untyped-def]
    name = type(resource).__name__
    held, why = [], "not refused"
    while len(held) < 400:
        try:
            held.append(resource.allocate(64 * MIB, stream=stream))
        except Exception as e:
            why = f"{type(e).__name__}: {str(e).splitlines()[0]}"
            break
    said(f"{name}: MiB until refused", 64 * len(held))
    said(f"{name}: refused", why)
    for one in held:
        one.close(stream)
    stream.sync()


device = Device(0)
outcome("set_current", lambda: device.set_current())
for name in ("name", "compute_capability", "arch", "pci_bus_id", "uuid"):
    outcome(f"Device.{name}", lambda name=name: str(getattr(device, name)))
outcome("devices", lambda: len(Device.get_all_devices()))
for name in sorted(n for n in dir(device.properties) if not n.startswith("_")):
    outcome(f"properties.{name}", lambda name=name: str(getattr(device.properties, name)))
stream = outcome("create_stream", lambda: device.create_stream(options=StreamOptions(nonblocking=True, priority=-1)))
other = device.create_stream()
outcome("Stream.priority", lambda: stream.priority)
buffer = outcome("Device.allocate", lambda: device.allocate(MIB, stream=stream))
outcome("Buffer.size", lambda: buffer.size)
outcome("Buffer.fill", lambda: buffer.fill(7, stream=stream))
pinned = outcome("LegacyPinnedMemoryResource", lambda: LegacyPinnedMemoryResource().allocate(MIB))
outcome("Buffer.copy_to", lambda: buffer.copy_to(pinned, stream=stream))
first = stream.record(options=EventOptions(timing_enabled=True))
last = stream.record(options=EventOptions(timing_enabled=True))
outcome("Stream.wait", lambda: other.wait(last))
outcome("Stream.sync", lambda: stream.sync())
outcome("Event difference", lambda: (last - first) >= 0)
outcome("what came back", lambda: list(ctypes.string_at(int(pinned.handle), MIB)[-2:]))
outcome("Buffer.close", lambda: buffer.close(stream))


def one_of(make) -> list[object]:  # type: ignore[no-untyped-def]
    one = make().allocate(MIB, stream=stream)
    kinds = [one.is_device_accessible, one.is_host_accessible, one.size]
    one.close(stream)
    stream.sync()
    return kinds


for name, make in (
    ("DeviceMemoryResource", lambda: DeviceMemoryResource(device)),
    ("a pool with a maximum", lambda: DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(max_size=256 * MIB))),
    ("a pool for IPC", lambda: DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(ipc_enabled=True, max_size=64 * MIB))),
    ("PinnedMemoryResource", lambda: PinnedMemoryResource()),
    ("ManagedMemoryResource", lambda: ManagedMemoryResource()),
    ("VirtualMemoryResource", lambda: VirtualMemoryResource(device)),
):  # fmt: skip
    outcome(name, lambda make=make: one_of(make))
outcome("Device.sync", lambda: device.sync())
until_refused(DeviceMemoryResource(device), stream)
outcome("free after that", free_mib)
module = outcome("ObjectCode.from_ptx", lambda: ObjectCode.from_ptx(PTX))
kernel = outcome("get_kernel", lambda: module.get_kernel("nothing"))
outcome("launch", lambda: launch(stream, LaunchConfig(grid=1, block=32), kernel))
for name in ("max_threads_per_block", "num_regs", "shared_size_bytes", "local_size_bytes", "ptx_version"):
    outcome(f"kernel.attributes.{name}", lambda name=name: getattr(kernel.attributes, name)())
outcome("occupancy", lambda: kernel.occupancy.max_active_blocks_per_multiprocessor(128, 0))
outcome("potential block size", lambda: str(kernel.occupancy.max_potential_block_size(0, 0)))


def graph() -> None:
    builder = stream.create_graph_builder()
    builder.begin_building()
    for _ in range(3):
        launch(builder, LaunchConfig(grid=1, block=32), kernel)
    made = builder.end_building().complete()
    made.upload(stream)
    made.launch(stream)
    stream.sync()


outcome("graph", graph)
outcome("system.get_num_devices", lambda: system.get_num_devices())
outcome("system.get_driver_version", lambda: str(system.get_user_mode_driver_version()))
outcome("system memory", lambda: [device.to_system_device().memory_info.total // MIB])

"""What is known of the health of devices."""

from fakes import FakeCuda

from hetero.devices.registry import Registry
from hetero.errors import DeviceError


class Toy(FakeCuda):
    kind = "toy"

    def __init__(self):
        super().__init__()
        self.name = "toy:0"

    def describe(self):
        return super().describe() | {"kind": self.kind, "name": "a toy"}


def test_a_second_failure_disables_and_a_reset_forgets():
    registry = Registry({"toy": lambda: ([Toy()], [])})
    begun = registry.failures()
    assert registry.count_failure("toy:0", DeviceError("ill"), begun) is False
    assert registry.count_failure("toy:0", DeviceError("ill"), begun) is None, "the same trouble"
    assert registry.disabled("toy:0") is None
    assert registry.count_failure("toy:0", DeviceError("ill"), registry.failures()) is True
    assert "ill" in registry.disabled("toy:0")
    assert registry.reset_failures("toy:0")
    assert registry.disabled("toy:0") is None
    assert not registry.troubles()

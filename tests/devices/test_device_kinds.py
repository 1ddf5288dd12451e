"""A kind of device that is registered from outside, and what is known of devices."""

import pytest
from fakes import FakeCuda

import hetero
from hetero import devices
from hetero.devices.registry import Registry
from hetero.errors import DeviceError


class Toy(FakeCuda):
    kind = "toy"

    def __init__(self):
        super().__init__()
        self.name = "toy:0"

    def describe(self):
        return super().describe() | {"kind": self.kind, "name": "a toy"}


@pytest.fixture
def toy():
    device = Toy()
    devices.register_kind("toy", lambda: ([device], ["toy: there could be more"]))
    yield device
    devices.unregister_kind("toy")


def test_a_kind_from_outside_is_there_and_goes_again(toy):
    assert devices.get("toy:0") is toy
    assert hetero.machine()["devices"]["toy:0"]["name"] == "a toy"
    assert "toy: there could be more" in devices.missing()
    with pytest.raises(ValueError, match="'toy' already"):
        devices.register_kind("toy", lambda: ([], []))
    devices.unregister_kind("toy")
    assert "toy:0" not in hetero.machine()["devices"]
    assert "toy: there could be more" not in devices.missing()
    devices.register_kind("toy", lambda: ([toy], []))


@pytest.mark.parametrize("kind", ["cpu", "cuda", "opencl"])
def test_kinds_that_there_are_cannot_be_registered(kind):
    with pytest.raises(ValueError, match=kind):
        devices.register_kind(kind, lambda: ([], []))


def test_devices_found_before_stay_the_same_objects():
    first, second = Toy(), Toy()
    second.name = "other:0"
    registry = Registry({"toy": lambda: ([first], [])})
    assert registry.available() == {"toy:0": first}
    told = []
    registry.on_change(lambda: told.append(set(registry.available())))
    registry.register_kind("other", lambda: ([second], []))
    assert registry.available() == {"toy:0": first, "other:0": second}
    registry.unregister_kind("other")
    assert told == [{"toy:0", "other:0"}, {"toy:0"}]


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

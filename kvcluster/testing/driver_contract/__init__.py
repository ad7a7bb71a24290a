"""The rules that every driver obeys, as tests that a backend's own test class inherits.

    @pytest.fixture
    def open_driver() -> Callable[[], Driver]: ...      # a new driver with room for 64 granules

    @pytest.fixture
    def in_child() -> ChildDriver: ...                  # how another process opens one

    class TestHostDriver(DriverContract): ...

Every refusal is checked to be one that never reached the hardware (`calls()` stands still) and that changed nothing
(the same call, made right, works). Bytes are read and written by the CPU where it reaches them, else by copies.
"""

from kvcluster.testing.driver_contract.access import AccessContract
from kvcluster.testing.driver_contract.addresses import AddressContract
from kvcluster.testing.driver_contract.bench import Bench, forked
from kvcluster.testing.driver_contract.child import ChildDriver
from kvcluster.testing.driver_contract.handles import HandleContract
from kvcluster.testing.driver_contract.refusals import RefusalContract
from kvcluster.testing.driver_contract.sealing import SealContract
from kvcluster.testing.driver_contract.sharing import SharingContract
from kvcluster.testing.driver_contract.work import WorkContract

__all__ = ["Bench", "ChildDriver", "DriverContract", "forked"]


class DriverContract(
    AddressContract, AccessContract, HandleContract, SharingContract, SealContract, WorkContract, RefusalContract
):
    """Inherit it, and define the fixtures `open_driver` and `in_child`."""

"""What ways to an owner of memory have in common that tests make themselves."""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.driver.protocol import PhysicalHandle


class Way:
    """One that stands, whatever it carries: nobody is fenced, and nobody follows a process that died."""

    page = None
    is_open = True
    is_fenced = False

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        """They are held anyhow."""

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        """Likewise."""

    def surrender(self) -> None:
        """Nobody hears it."""

"""Who asks, chosen call by call: `setfsuid` and friends, for a thread or a task of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glustx.gfapi.exceptions import VolumeNotMounted

if TYPE_CHECKING:
    from glustx.gfapi.volume import VolumeCore


class Personas:
    """A volume object whose user may differ from thread to thread, or from task to task.

    `_core` is an attribute like any other until the first `setfs...`: from then on it is looked up for each call, so
    that only those pay who ask for it.
    """

    volname: str
    _base: VolumeCore | None = None
    _personal = False
    _why = "mount comes first"

    def _own(self) -> dict[str, Any] | None:
        """Return what belongs to the thread or task that calls; None where there is neither."""
        raise NotImplementedError

    def setfsuid(self, uid: int) -> None:
        """Ask as user `uid` from now on, without supplementary groups, in this thread (or asyncio task) only.

        `using` gives another volume object for another user instead, which is easier to get right.
        """
        self._set("uid", uid)

    def setfsgid(self, gid: int) -> None:
        """Ask with the group `gid` from now on, in this thread (or asyncio task) only."""
        self._set("gid", gid)

    def setfsgroups(self, groups: Sequence[int]) -> None:
        """Ask with these supplementary groups from now on, in this thread (or asyncio task) only."""
        self._set("groups", tuple(groups))

    def _set(self, name: str, value: Any) -> None:
        own = self._own()
        if own is None:
            raise RuntimeError("who asks is set in a task of the event loop")
        own.setdefault("ids", {})[name] = value
        own.pop("core", None)
        self._personal = True
        self.__dict__.pop("_core", None)

    def _begin(self, core: VolumeCore) -> None:
        """Use `core` from now on."""
        self._base = core
        if not self._personal:
            self.__dict__["_core"] = core

    def _end(self) -> None:
        self._base = None
        self._why = "it is closed"
        self.__dict__.pop("_core", None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "_core":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            base = self._base
            if base is None:
                raise VolumeNotMounted(f"volume {self.volname} is not mounted: {self._why}")
            own = self._own()
            if own is None:
                return base
            core = own.get("core")
            if core is None or core.session is not base.session:
                core = own["core"] = base.using(**own.get("ids", {}), here=base.here)
            return core

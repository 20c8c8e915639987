"""What the static probe saw in a layer, kept by the layer's digest: its files are read once, not in every image.

A layer is content: the engine refuses one whose bytes are not those of its diff id, and in an image that was assembled
here no layer hides a file of another. So what was read of a distribution holds wherever its layer is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.verify.grounds import suite_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.store import Store

KIND = "read"


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The facts of an image's layers, as the probe packs them, by distribution.

    `places` are the diff ids of the layers by the distribution that they hold. With `again` nothing is recalled: every
    file is read. What is read is kept all the same.
    """

    store: Store
    places: Mapping[str, str] = field(default_factory=dict)
    again: bool = False

    def recall(self, gpu: str) -> dict[str, str]:
        """Return what is known of each distribution for a GPU, as these checks saw it."""
        if self.again:
            return {}
        records = {diff_id: self._record(diff_id).get(gpu, {}) for diff_id in set(self.places.values())}
        return {name: records[diff_id][name] for name, diff_id in self.places.items() if name in records[diff_id]}

    def keep(self, facts: Mapping[str, str | None], gpu: str) -> None:
        """Keep what was seen of each distribution; None, what is not as its wheel recorded it, is read again."""
        for diff_id in sorted(set(self.places.values())):
            seen = {name: told for name, told in facts.items() if told and self.places.get(name) == diff_id}
            with self.store.exclusive(f"{KIND}-{_key(diff_id)}"):
                record = self._record(diff_id)
                if record.get(gpu) != seen:
                    value = {"suite": suite_digest(), "gpus": {**record, gpu: seen}}
                    self.store.keep_result(KIND, _key(diff_id), value)

    def _record(self, diff_id: str) -> dict[str, dict[str, str]]:
        """Return what is kept of a layer by GPU; what other checks saw counts for nothing."""
        record = self.store.result(KIND, _key(diff_id)) or {}
        gpus: dict[str, dict[str, str]] = record["gpus"] if record.get("suite") == suite_digest() else {}
        return gpus


def _key(diff_id: str) -> str:
    return diff_id.removeprefix("sha256:")

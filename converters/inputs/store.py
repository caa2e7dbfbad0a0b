"""A folder of class folders in an object store, as a local one is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from wellfed.pipeline.errors import UsageError

from .base import InputOptions, Record
from .flat import label_of, label_rule
from .listing import ListedInput, Listing, ListingBuilder
from .members import skip_kind
from .stores import Facts, Stores, facts_of, in_parts, location_errors, protocol_of

_AT_ONCE = 1000
_LAYOUT = "Arrange the images as ROOT/CLASS/IMAGE, one folder for each class, and give ROOT."


def matches(location: str) -> bool:
    """Any URL of a store; what ends as a table or an archive does is asked about before."""
    return protocol_of(location) is not None


class StoreInput(ListedInput):
    """Objects below a prefix, in the order of a local folder of the same names; see `Input` for the contract.

    The class is the first part of the path, or what the label rule finds in it.
    """

    kind = "store"

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        self._stores = Stores()

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Ask the store for all names, sizes and stamps.

        Raises:
            UsageError: it does not answer, or there are no objects below class folders.
            MissingDependencyError: the library for the store is not installed.
        """
        rule = label_rule(options.label_regex) if options.label_regex is not None else None
        skipped: Counter[str] = Counter()
        builder = ListingBuilder()
        for name, facts in _known(location, _objects(location, skipped, in_classes=rule is None)):
            label = name.split("/")[0] if rule is None else label_of(rule, name.encode("utf-8"))
            reason = facts.reason
            if label is None and reason is None:
                reason = "the label rule does not fit the path"
            builder.add(name.encode("utf-8"), label=label, size=facts.size, stamp=facts.stamp, reason=reason)
        listing = builder.finish(options.classes, skipped=skipped)
        if not len(listing):
            raise UsageError(
                "the folder must hold images in class folders",
                got=f"{location}, without objects in any ({sum(skipped.values())} others skipped)",
                remedy=_LAYOUT,
            )
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """The object's bytes.

        Raises:
            SampleRejectedError: it cannot be read, or is not the one that was listed.
        """
        columns = self.listing.columns
        url = f"{self.location.rstrip('/')}/{self.name(row).decode('utf-8')}"
        size, stamp = int(columns["size"][row]), int(columns["stamp"][row])
        return Record(self._stores.fetch(url, size=size, stamp=stamp), {})


def _known(location: str, objects: Iterator[tuple[str, Facts]]) -> Iterator[tuple[str, Facts]]:
    """The objects; where their folder does not tell a size, as that of a web server, each is asked about."""
    stores = Stores()
    for part in in_parts(objects, _AT_ONCE):
        unknown = [f"{location.rstrip('/')}/{name}" for name, facts in part if not facts.size and facts.reason is None]
        asked = iter(stores.facts(unknown))
        for name, facts in part:
            yield name, (next(asked) if not facts.size and facts.reason is None else facts)


def _objects(location: str, skipped: Counter[str], *, in_classes: bool) -> Iterator[tuple[str, Facts]]:
    """Relative path and facts, in order; one first-level folder is held at a time."""
    stores = Stores()
    system = stores.system(location)
    root = system._strip_protocol(location).rstrip("/")
    with location_errors(location):
        try:
            entries = system.ls(root, detail=True)
        except FileNotFoundError:
            entries = []
    top = sorted(entries, key=lambda entry: _sorted_as(entry, entry["name"][len(root) + 1 :], in_classes))
    for entry in top:
        name = entry["name"].rstrip("/")[len(root) + 1 :]
        if not name:
            continue
        if kind := skip_kind(name.encode("utf-8")):
            skipped[kind] += 1
        elif entry.get("type") == "directory":
            yield from _below(system, location, root, name, skipped)
        elif in_classes:
            skipped["outside_class_folders"] += 1
        else:
            yield name, facts_of(entry)


def _below(system: Any, location: str, root: str, folder: str, skipped: Counter[str]) -> Iterator[tuple[str, Facts]]:
    with location_errors(location):
        found = system.find(f"{root}/{folder}", detail=True)
    for path in sorted(found, key=lambda path: path.encode("utf-8")):
        name = path[len(root) + 1 :]
        if kind := skip_kind(name.encode("utf-8")):
            skipped[kind] += 1
        elif not path.endswith("/"):
            yield name, facts_of(found[path])


def _sorted_as(entry: dict[str, Any], name: str, in_classes: bool) -> bytes:
    # Classes sort as their names do; paths as if a folder's name went on with a slash.
    slash = "/" if entry.get("type") == "directory" and not in_classes else ""
    return (name.rstrip("/") + slash).encode("utf-8")

"""From an archive's members to the rows of a listing, with every sample that is not whole refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from .layout import Layout, class_folder
from .listing import ListingBuilder
from .members import FULL_FOLDER, NAMELESS
from .membertable import MemberTable


class SampleRows:
    """Adds samples to a builder.

    Args:
        stamps: modification time of each archive, nanoseconds.
        locators: columns of the member table that say where a member is.

    Attributes:
        skipped: counts, added to.
        classes: names of folders that samples lie in, where labels come from folders.
        content: digest over the sizes of further fields.
    """

    def __init__(
        self,
        builder: ListingBuilder,
        table: MemberTable,
        layout: Layout,
        *,
        stamps: Sequence[int],
        locators: tuple[str, ...],
        skipped: Counter[str],
    ) -> None:
        self._builder, self._table, self._layout = builder, table, layout
        self._stamps, self._locators = stamps, locators
        self._reasons = table.reasons
        self.skipped = skipped
        self.classes: set[str] = set()
        self.content = hashlib.sha256(repr(layout.fields).encode())

    def add(self, members: list[int]) -> None:
        """Add the samples that members of one key make: one, or one each."""
        if self._layout.grouped:
            self._add(members)
        else:
            for member in members:
                self._add([member])

    def _add(self, members: list[int]) -> None:
        table, layout = self._table, self._layout
        by_ext = {table.row(member).ext: member for member in members}
        rare = by_ext.keys() & layout.rare if layout.grouped else ()
        for code in rare:
            self.skipped[f"member .{layout.shown_ext(code)}"] += 1
        # What has no name, or that of a folder, may be anything: no extension says that it is no image.
        if len(rare) == len(by_ext) and not any(self._reason(member) in (NAMELESS, FULL_FOLDER) for member in members):
            return
        image, reason = layout.image_of(members)
        label, fault = layout.label(members, image)
        refused = next(filter(None, map(self._reason, members)), None)
        if layout.labels_from == "folders":
            if label is None and refused is None:
                self.skipped["outside_class_folders"] += 1
                return
            if label is not None:
                self.classes.add(label)
        reason = refused or reason or fault
        places, lacking = self._places(members[0] if image is None else image, by_ext)
        first = members[0] if image is None else image
        row = table.row(first)
        self._builder.add(
            table.name(first),
            label=label,
            size=row.size,
            stamp=self._stamps[row.archive],
            reason=reason or lacking,
            archive=row.archive,
            **places,
        )

    def _reason(self, member: int) -> str | None:
        code = self._table.row(member).reason
        return self._reasons[code] if code >= 0 else None

    def _places(self, image: int, by_ext: dict[int, int]) -> tuple[dict[str, int], str | None]:
        """Where the parts of a sample are, by column, and what is missing."""
        layout = self._layout
        places: dict[str, int] = {}
        lacking = None
        self._place(places, image, "")
        # The listing has it already, as every listing does.
        del places["size"]
        for number, (code, field) in enumerate(layout.extras.items()):
            if code in by_ext:
                self._place(places, by_ext[code], f"f{number}_")
            else:
                lacking = lacking or f"the sample has no {field.name}"
        if layout.label_code in by_ext:
            self._place(places, by_ext[layout.label_code], "class_")
        if layout.keys:
            if layout.json_code in by_ext:
                self._place(places, by_ext[layout.json_code], "json_")
            else:
                lacking = lacking or "the sample has no json"
        return places, lacking

    def _place(self, places: dict[str, int], member: int, before: str) -> None:
        row = self._table.row(member)
        for name in self._locators:
            places[before + name] = getattr(row, name)
        if before:
            self.content.update(b"%d," % row.size)

    def classes_with_empty(self, folders: set[bytes]) -> tuple[str, ...]:
        """All class folders, those without a sample too, sorted as text.

        Args:
            folders: paths of the archives' entries for folders.
        """
        common = self._layout.common
        empty = set()
        for folder in folders:
            path = folder.rstrip(b"/") + b"/"
            if path.startswith(common) and (name := class_folder(path.removeprefix(common))):
                empty.add(name)
        return tuple(sorted(self.classes | empty))

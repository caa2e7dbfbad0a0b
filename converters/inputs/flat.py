"""A folder of files whose class is part of their path: `--label-regex` says which part."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Self

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats.scan import walk_files

from .base import InputOptions, Record
from .folder import read_listed
from .listing import ListedInput, ListingBuilder


def matches(location: str) -> bool:
    """Never: only a label rule makes a folder a flat one."""
    return False


class FlatInput(ListedInput):
    """All files below a folder, in the order of their relative paths; see `Input` for the contract."""

    kind = "flat"
    rereads = True

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Walk the folder.

        Raises:
            UsageError: it is missing or holds no file, or the label rule is missing, no regular expression, without a
                group, or fits none of the paths.
        """
        rule = label_rule(options.label_regex)
        builder = ListingBuilder()
        skipped: Counter[str] = Counter()
        first = None
        for entry in walk_files(Path(location), skipped):
            label = label_of(rule, entry.path)
            reason = entry.reason
            if reason is None and label is None:
                reason = "the label rule does not fit the path"
            builder.add(entry.path, label=label, size=entry.size, stamp=entry.mtime_ns, reason=reason)
            first = entry.path if first is None else first
        listing = builder.finish(options.classes, skipped=skipped)
        if first is None:
            raise UsageError("the folder must hold images", got=f"{location}, without files", remedy="Check the path.")
        if not listing.class_names:
            raise UsageError(
                f"the label rule {rule.pattern!r} must fit the paths relative to the folder",
                got=f"{len(listing)} files, and it fits none; the first is {os.fsdecode(first)!r}",
                remedy="Its group named label, or else group 1, is the class; it may match anywhere in the path.",
            )
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """The file's bytes.

        Raises:
            SampleRejectedError: it cannot be read, or its size or modification time is not the listed one.
        """
        columns = self.listing.columns
        path = os.path.join(os.fsencode(self.location), self.name(row))
        return Record(read_listed(path, size=int(columns["size"][row]), mtime_ns=int(columns["stamp"][row])), {})


def label_rule(pattern: str | None) -> re.Pattern[str]:
    """The rule, compiled. Raises UsageError where it is none."""
    if pattern is None:
        raise UsageError(
            "a flat folder needs a rule for labels", got="none", remedy=r"Give --label-regex, such as '([^/_]+)_\d+'."
        )
    try:
        rule = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            "the label rule must be a regular expression", got=f"{pattern!r}: {error}", remedy="Mend it."
        ) from error
    if not rule.groups:
        raise UsageError(
            "the label rule must have a group, which is the class", got=repr(pattern), remedy="Put ( ) around it."
        )
    return rule


def label_of(rule: re.Pattern[str], path: bytes) -> str | None:
    """The class of a relative path; None where the rule does not fit or its group took no part."""
    found = rule.search(os.fsdecode(path))
    if found is None:
        return None
    label: str | None = found["label"] if "label" in rule.groupindex else found[1]
    return label

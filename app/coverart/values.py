"""What the database says of a release or an event and its images, and the three jobs that messages ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """One image. `id` is an integer, `suffix` has no dot (`jpg`); `approved` means that its edit is closed."""

    id: int
    suffix: str
    comment: str
    edit: int
    approved: bool
    front: bool
    back: bool
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entity:
    """A release or an event with its images in order. `gid` is canonical; of a merged one, the target's."""

    gid: str
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Write anew what the archive holds about an entity: its listing and its metadata."""

    gid: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move an image from one entity's item to another's."""

    id: int
    old_gid: str
    new_gid: str
    suffix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one file of an entity's item: an image, or (`id` is None) its `index.json`."""

    gid: str
    id: int | None = None
    suffix: str = "jpg"


Job = Index | Move | Delete

"""Stages: a bundle over an earlier one, whose fields are then those of both."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from typing import NamedTuple

from rollferry.bundle.checksums import Verification, Verify
from rollferry.bundle.manifest import Base, Manifest, load
from rollferry.engines.base import Engine, Reader
from rollferry.errors import BundleError, BundleNotFoundError, RefError, RollferryError
from rollferry.refs import MAX_STAGES, TransferRef

__all__ = ["Stage", "open_manifest", "opened", "remove_stages", "stages_of", "stages_within"]


class Stage(NamedTuple):
    """One stage, open for reading.

    Parameters
    ----------
    manifest
        Its manifest.
    reader
        Its bytes.
    verification
        What is verified of them, if anything is.
    """

    manifest: Manifest
    reader: Reader
    verification: Verification | None = None


@contextmanager
def opened(engine: Engine, ref: TransferRef, verify: Verify = "auto") -> Iterator[list[Stage]]:
    """Have all stages of a bundle open, the newest first; `verify` is what of their payloads is to be verified.

    Raises
    ------
    BundleNotFoundError
        The bundle or an older stage was removed; names it.
    RefError
        The reference is not of this bundle.
    BundleError
        A stage is damaged, or not the one that the next newer one was put over, or has no checksums to verify.
    """
    if verify == "auto" and not engine.networked:
        verify = "manifest"
    with ExitStack() as readers:
        found: list[Stage] = []
        base: Base | None = Base.of(ref)
        while base is not None and len(found) < ref.stages:
            found.append(readers.enter_context(opened_stage(engine, base, ref, verify, of_ref=not found)))
            if found[-1].manifest.type != found[0].manifest.type:
                raise BundleError(f"its stage {base.key} is of another type")
            base = found[-1].manifest.base
        if base is not None or len(found) != ref.stages:
            raise RefError(f"bad reference: the bundle {ref.key} does not have {ref.stages} stages")
        yield found


@contextmanager
def opened_stage(engine: Engine, base: Base, ref: TransferRef, verify: Verify, *, of_ref: bool) -> Iterator[Stage]:
    """Have one stage open, which is the one that the reference itself names, or an older one."""
    reader = open_reader(engine, base, ref, of_ref=of_ref)
    try:
        try:
            manifest = checked_manifest(reader, base, of_ref=of_ref)
        except (BundleError, RefError):
            # It may have been removed, and its memory used again, while it was read: then that is what to say.
            open_reader(engine, base, ref, of_ref=of_ref).close()
            raise
        of = "" if of_ref else f" of its stage {base.key}"
        verified = None if verify == "manifest" else Verification(manifest.members, manifest.checksums, verify, of)
        yield Stage(manifest, reader, verified)
    finally:
        reader.close()


def open_reader(engine: Engine, base: Base, ref: TransferRef, *, of_ref: bool) -> Reader:
    """Open a stage. Raises BundleNotFoundError that also names the reference."""
    try:
        return engine.open(base.key)
    except BundleNotFoundError as error:
        if of_ref:
            raise
        raise BundleNotFoundError(f"the bundle {ref.key} lacks its stage {base.key}: {error}") from error


def checked_manifest(reader: Reader, base: Base, *, of_ref: bool) -> Manifest:
    """Give the manifest of a stage. Raises BundleError or RefError where it is another one."""
    manifest, digest = load(reader.manifest, reader.payload_nbytes)
    if (digest, manifest.id, manifest.payload_nbytes, manifest.rows) == (base.digest, base.id, base.nbytes, base.rows):
        return manifest
    if of_ref:
        raise RefError(f"bad reference: the bundle {base.key} is not the one it was made for")
    raise BundleError(f"its stage {base.key} is not the one it was put over")


def open_manifest(engine: Engine, key: str) -> tuple[Manifest, str]:
    """Give the manifest of a bundle, and its digest."""
    reader = engine.open(key)
    try:
        return load(reader.manifest, reader.payload_nbytes)
    except BundleError as error:
        raise type(error)(f"bundle {key}: {error}") from error
    finally:
        reader.close()


def remove_stages(engine: Engine, keys: Sequence[str]) -> bool:
    """Remove stages, the newest first; False if that isn't there."""
    removed = [engine.remove(key) for key in keys]
    return removed[0]


def stages_of(engine: Engine, ref: TransferRef) -> list[str]:
    """Give the keys of the stages that a reference speaks of, as far as their manifests can be read.

    No manifest adds to them: what a bundle names is removed or kept only where the reference, which could name anything
    itself, says that there are so many stages.
    """
    return stage_keys(engine, ref.key, ref.stages)


def stages_within(engine: Engine, namespace: str, id: str) -> list[str]:
    """Give the keys of a bundle and of its older stages, as far as they are of its namespace and can be read."""
    keys = stage_keys(engine, f"{namespace}.{id}", MAX_STAGES)
    return list(takewhile(lambda key: key.startswith(f"{namespace}."), keys))


def stage_keys(engine: Engine, key: str, most: int) -> list[str]:
    """Give the keys of a bundle and of its older stages, as far as their manifests can be read."""
    keys = [key]
    while len(keys) < most:
        try:
            base = open_manifest(engine, keys[-1])[0].base
        except RollferryError:  # damaged, gone, or out of reach: what can be removed still is
            break
        if base is None:
            break
        keys.append(base.key)
    return keys

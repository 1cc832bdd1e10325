"""Stages: a bundle over an earlier one, whose fields are then those of both."""

from typing import NamedTuple

from rollferry.bundle.manifest import Base, Manifest, load
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, BundleNotFoundError, RefError, RollferryError
from rollferry.refs import MAX_STAGES, TransferRef

__all__ = ["Stage", "remove_stages", "stages"]


class Stage(NamedTuple):
    """One stage, looked up and closed again.

    Parameters
    ----------
    key
        Its key in the engine.
    manifest
        Its manifest.
    """

    key: str
    manifest: Manifest


def stages(engine: Engine, ref: TransferRef) -> list[Stage]:
    """Give all stages of a bundle, the newest first.

    Raises
    ------
    BundleNotFoundError
        The bundle or an older stage was removed; names it.
    RefError
        The reference is not of this bundle.
    BundleError
        A stage is damaged, or not the one that the next newer one was put over.
    """
    found: list[Stage] = []
    base: Base | None = Base.of(ref)
    while base is not None and len(found) < ref.stages:
        try:
            manifest, digest = open_manifest(engine, base.key)
        except BundleNotFoundError as error:
            if not found:
                raise
            raise BundleNotFoundError(f"the bundle {ref.key} lacks its stage {base.key}: {error}") from error
        if (digest, manifest.id, manifest.payload_nbytes, manifest.rows) != (
            base.digest,
            base.id,
            base.nbytes,
            base.rows,
        ):
            if not found:
                raise RefError(f"bad reference: the bundle {base.key} is not the one it was made for")
            raise BundleError(f"bundle {ref.key}: its stage {base.key} is not the one it was put over")
        if found and manifest.type != found[0].manifest.type:
            raise BundleError(f"bundle {ref.key}: its stage {base.key} is of another type")
        found.append(Stage(base.key, manifest))
        base = manifest.base
    if base is not None or len(found) != ref.stages:
        raise RefError(f"bad reference: the bundle {ref.key} does not have {ref.stages} stages")
    return found


def open_manifest(engine: Engine, key: str) -> tuple[Manifest, str]:
    """Give the manifest of a bundle, and its digest."""
    reader = engine.open(key)
    try:
        return load(reader.manifest, reader.payload_nbytes)
    except BundleError as error:
        raise type(error)(f"bundle {key}: {error}") from error
    finally:
        reader.close()


def remove_stages(engine: Engine, key: str) -> bool:
    """Remove a bundle and then the older stages, as far as their manifests can be read; False if it isn't there."""
    keys = [key]
    while len(keys) < MAX_STAGES:
        try:
            base = open_manifest(engine, keys[-1])[0].base
        except RollferryError:  # damaged, gone, or out of reach: what can be removed still is
            break
        if base is None:
            break
        keys.append(base.key)
    removed = [engine.remove(name) for name in keys]
    return removed[0]

"""Ferry: put, get and remove batches."""

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self, get_args

from rollferry.bundle.checksums import Verify
from rollferry.bundle.dataproto import SECTIONS
from rollferry.bundle.describe import BundleReport, describe, ref_of
from rollferry.bundle.extend import extended
from rollferry.bundle.fields import EncodedBatch, encode_batch
from rollferry.bundle.inventory import BundleInfo, Inventory
from rollferry.bundle.lifetime import keep, note_done
from rollferry.bundle.manifest import BatchType
from rollferry.bundle.publish import Terms, publish
from rollferry.bundle.read import read
from rollferry.bundle.rebuild import PausedCollector, packed_field
from rollferry.bundle.reclaim import Reclaimed, Reclaimer
from rollferry.bundle.request import FieldsLike, Request, RowsLike
from rollferry.bundle.space import FullPolicy, Space
from rollferry.bundle.stages import remove_stages, stages_of, stages_within
from rollferry.engines.base import Engine, Usage
from rollferry.engines.registry import open_engine, parse_size
from rollferry.errors import EngineFullError, FerryClosedError, RefError
from rollferry.explain import Explanation, explain, infer_schema
from rollferry.metrics import Metrics
from rollferry.packed import Library, Packed, Side, nested, packed, padded
from rollferry.refs import (
    ID_PATTERN,
    MAX_READERS,
    NAMESPACE_PATTERN,
    TransferRef,
    as_ref,
    check_lag,
    check_metadata,
    check_version,
)
from rollferry.schema import Schema, SchemaLike, as_schema
from rollferry.timings import Stopwatch, Timing

__all__ = ["Ferry", "Ref", "connect"]

Batch = dict[Any, Any]
Ref = TransferRef | Mapping[str, Any] | str | bytes

DEFAULT_URL = "shm://"
TIMINGS = 1024


def connect(
    url: object = None,
    *,
    namespace: str = "default",
    schema: SchemaLike | None = None,
    allow_pickle: bool = False,
    checksum: bool = False,
    quota: int | str | None = None,
    guarantee: int | str | None = None,
    full: FullPolicy = "raise",
    patience: float = 60.0,
    reader: str | None = None,
    **options: object,
) -> "Ferry":
    """Open an engine.

    Parameters
    ----------
    url
        Where bundles live: ``shm://`` (shared memory of this machine), ``shm:///some/directory``, both with the option
        ``?pool=SIZE`` (most bytes of free segments to keep, such as ``8gb``), ``ray://`` (the Ray cluster that runs),
        ``mooncake://HOST:PORT`` (Mooncake Store, with its master there), or ``inproc://`` (this process). docs/ray.md and
        docs/mooncake.md have the options of these engines.
        Or a ``MooncakeDistributedStore`` that is set up: it is used as it is, and stays its owner's to close.
        By default the environment variable ``ROLLFERRY_URL``, and without it ``shm://``.
    namespace
        Name under which bundles are put: letters, digits, ``-`` and ``_``, at most 63.
    schema
        Instructions for fields of every put.
    allow_pickle
        Whether values of unknown classes are pickled on put and unpickled on get. Only for bundles that you trust:
        unpickling runs code.
    checksum
        Whether put computes checksums of the payload, which ``get(verify="full")`` needs. Engines that use a network have
        them in any case.
    quota
        Most bytes of bundles in the namespace, such as ``"8gb"``, for the puts of this Ferry; it holds over all processes that
        put with the same. On ``mooncake://`` quotas are the master's, by tenant.
    guarantee
        Bytes of the engine's room, such as ``"2gb"``, that no other namespace can take as long as this Ferry is open and its
        process lives. What bundles of the namespace take counts. Not on ``mooncake://``, where the quotas of all tenants together
        are to be less than what the store has.
    full
        What a put does where quota or engine has no room: ``raise`` EngineFullError; ``block`` until readers have made room,
        those that wait longest first; ``evict-oldest``: remove the oldest bundles of the namespace, whether they were read or
        not.
    patience
        Seconds that a put blocks at most.
    reader
        Name of this reader, for bundles that are put with ``readers=``: letters, digits, ``-`` and ``_``, at most 63. A reader
        that was started anew under its name is the same one. By default every Ferry is a reader of its own.
    **options
        Options of the engine, as in the URL: ``connect("mooncake://HOST:PORT", segment="8gb")``.

    Returns
    -------
    Ferry

    Raises
    ------
    EngineError
        The URL names no engine, or the engine can't be used, or can't guarantee bytes. EngineFullError where there are too few.
    ValueError
        The namespace is not valid.
    """
    if not isinstance(namespace, str) or NAMESPACE_PATTERN.fullmatch(namespace) is None:  # type: ignore[redundant-expr]
        raise ValueError(f"{namespace!r} is no namespace: letters, digits, - and _ are allowed, at most 63")
    if reader is not None and (not isinstance(reader, str) or NAMESPACE_PATTERN.fullmatch(reader) is None):  # type: ignore[redundant-expr]
        raise ValueError(f"{reader!r:.80} is no name of a reader: letters, digits, - and _ are allowed, at most 63")
    space = Space(nbytes_of(quota), full, patience)
    space.check()
    kept = nbytes_of(guarantee)
    if kept is not None and kept < 1:
        raise ValueError("guarantee must be at least one byte")
    engine = open_engine(url or os.environ.get("ROLLFERRY_URL") or DEFAULT_URL, **options)
    if kept is not None:
        try:
            engine.guarantee(namespace, kept)
        except BaseException:
            engine.close()
            raise
    terms = Terms(namespace=namespace, checksum=checksum, space=space)
    return Ferry(engine, terms, schema=schema, allow_pickle=allow_pickle, reader=reader)


class Ferry:
    """Hands batches over through an engine. Made by `connect`.

    A Ferry may be used from several threads at once, and in the child of a fork. It is a context manager; leaving it
    closes it. Results stay valid after it is closed.

    Attributes
    ----------
    timings
        How long the phases of the last 1,024 puts and gets took, the latest last. It may be emptied.
    metrics
        What was done so far, counted: ``metrics.snapshot()`` is a dict. `rollferry.metrics.exporter` has it for Prometheus.
    """

    def __init__(
        self,
        engine: Engine,
        terms: Terms = Terms(),  # noqa: B008  # it can't be changed
        *,
        schema: SchemaLike | None = None,
        allow_pickle: bool = False,
        reader: str | None = None,
    ) -> None:
        self._engine = engine
        self._namespace = terms.namespace
        self._inventory = Inventory(engine)
        self._reclaimer = Reclaimer(engine, self._inventory, self._count_reclaimed)
        self._terms = terms._replace(reclaim=self._reclaimer.make_room)
        self._schema = as_schema(schema)
        self._allow_pickle = allow_pickle
        self._reader = reader
        self._token = secrets.token_hex(8)
        self._got: dict[int, TransferRef] = {}  # by the id of a result: bundles that count their readers
        self._closed = False
        self.timings: deque[Timing] = deque(maxlen=TIMINGS)
        self.metrics = Metrics(lambda: engine.retries)

    def put(
        self,
        batch: Any,
        *,
        type: BatchType = "dict",
        schema: SchemaLike | None = None,
        metadata: dict[str, Any] | None = None,
        policy_version: int | None = None,
        ttl: float | None = None,
        readers: int | None = None,
    ) -> TransferRef:
        """Store a batch; when this returns it is complete and visible to every reader.

        Later changes to the batch don't reach it. The batch must not be changed by another thread meanwhile.

        Parameters
        ----------
        batch
            Fields by key: numpy arrays, torch tensors, PIL images, and Python values made of int, float, bool, complex, str,
            bytes, bytearray, range, None, list, tuple, dict, set, frozenset and registered classes, to any depth up to 100.
        type
            Kind of batch. ``dict``: a dict of fields. ``dataproto``: an object with the attributes ``batch`` (TensorDict, dict
            or None), ``non_tensor_batch`` and ``meta_info`` (dict or None), such as verl's DataProto, or a dict with some of
            these as its keys; what they hold are the fields. Those of ``meta_info`` are not row-aligned.
        schema
            Instructions for fields, before those of the Ferry. Names are those of fields in any section.
        metadata
            JSON-safe values to travel in the reference.
        policy_version
            Version of the policy that generated the batch, to travel in the reference: see `max_lag` of `get`.
        ttl
            Seconds to live; then the bundle is removed by whoever puts next, or by `gc`. By default it lives until it is
            removed, or for 6 hours if it has `readers`. `keep` extends it.
        readers
            How many readers it is for. Each is done once it calls `remove` or `release`, or leaves `borrow`; the last of so many
            different ones removes the bundle. A reader that dies isn't done: then the bundle lives until its time is over.

        Returns
        -------
        TransferRef
            Hand it to `get` and `remove`, as it is or as JSON, on any side.

        Raises
        ------
        UnsupportedValueError
            A value can't be kept exactly; the message has its path. Nothing was put, as with all errors.
        SchemaError
            A field breaks its schema.
        EngineFullError
            There is no room.
        BatchChangedError
            Another thread changed the batch meanwhile.
        """
        engine = self._open_engine(type)
        own = None if metadata is None else check_metadata(metadata)
        check_version(policy_version, "policy_version")
        check_life(ttl, readers)
        self._reclaimer.by_the_way()
        watch = Stopwatch()
        encoded = encode_batch(batch, self._schema_for(schema), allow_pickle=self._allow_pickle, kind=type)
        watch.lap("choose")
        terms = self._terms._replace(metadata=own, policy_version=policy_version, ttl=ttl, readers=readers)
        return self._publish(engine, encoded, terms, watch)

    def append(
        self,
        ref: Ref,
        fields: Any,
        *,
        type: BatchType = "dict",
        schema: SchemaLike | None = None,
        overwrite: bool = False,
    ) -> TransferRef:
        """Add fields to a bundle, such as those that a later stage of a pipeline computes; only they are stored.

        The bundle is not changed, and its reference goes on to mean what it did. The new one means the bundle with the fields
        added, as a *stage* over it: once the old one is removed, the new one can't be read.

        Parameters
        ----------
        ref
            The bundle, as for `get`.
        fields
            The fields to add: a batch as for `put`. Of a ``dataproto``, sections may be None or missing.
        type
            Kind of batch, that of the bundle.
        schema
            As for `put`.
        overwrite
            Whether a field replaces one of the same name (and section) that is there. The earlier reference still has the old.

        Returns
        -------
        TransferRef
            It has the metadata and the policy version of `ref`. `remove` removes what was added and all that it was added to.

        Raises
        ------
        SchemaError
            The bundle is of another type, has another number of rows or such a field already, or has 1,000 stages; or a field
            breaks its schema. Nothing was stored, as with all errors.
        BundleNotFoundError
            The bundle, or an older stage of it, was removed.
        RefError, BundleError
            As for `get`. Otherwise as `put`.
        """
        engine, own, watch = self._open_engine(type), self._own(ref), Stopwatch()
        metadata = None if own.metadata is None else check_metadata(own.metadata)
        encoded = encode_batch(fields, self._schema_for(schema), allow_pickle=self._allow_pickle, kind=type)
        stage, lifetime = extended(engine, own, encoded, overwrite=overwrite, allow_pickle=self._allow_pickle)
        watch.lap("choose")
        ttl = None if lifetime is None else lifetime.ttl
        terms = self._terms._replace(
            metadata=metadata, policy_version=own.policy_version, ttl=ttl, readers=own.readers, base=own
        )
        new = self._publish(engine, stage, terms, watch)
        if ttl is not None:
            keep(engine, own, ttl)  # as long as what was put over it
        return new

    def get(
        self,
        ref: Ref,
        *,
        type: BatchType = "dict",
        fields: FieldsLike | None = None,
        rows: RowsLike | None = None,
        into: Mapping[Any, Any] | None = None,
        data_cls: Callable[..., Any] | None = None,
        max_lag: int | None = None,
        current_version: int | None = None,
        readonly: bool = False,
        lazy: bool = False,
        verify: Verify = "auto",
    ) -> Any:
        """Rebuild a batch. Any number of readers may do so, any number of times.

        Arrays and tensors are views over memory that lives as long as any of them. They are writable and private:
        changes reach neither the stored bundle nor another result.

        Parameters
        ----------
        ref
            What `put` returned, its dict, or its JSON.
        type
            Kind of batch.
        fields
            Keys of the fields to read, in that order; by default all. Of a ``dataproto`` a name stands for it in all
            sections that have it, and a mapping of section -> names, or None for all of it, leaves other sections out.
        rows
            The rows to read: a slice, or a list, ndarray or tensor of ints, or of as many bools as there are rows. Lists and
            tuples, and arrays along their first axis, then have these rows only, as if the whole batch had been indexed. Any
            other field comes back as it is, as does one put with ``FieldSchema(row_aligned=False)``.
        into
            Buffers to fill, by field: an ndarray or tensor of the shape and dtype of the values. The field's value is the
            buffer; where rows differ in length, a list of views of it, which has them one after the other. Lists of Python
            ints go into any dtype of ints that keeps them, floats into float64. Nothing is written unless all buffers fit.
        data_cls
            For a ``dataproto``: called with the keywords ``batch``, ``non_tensor_batch`` and ``meta_info`` to make the result.
        max_lag, current_version
            Both or neither: how many versions older than the current one the policy of the batch may be.
        readonly
            Whether ndarrays come back read-only. Tensors are writable in any case.
        lazy
            Whether lists and tuples come back in constant time: as `LazyRows` over values and offsets where they hold arrays
            of one dtype and number of dimensions that differ in their first axis at most, without None (rows that occur
            several times are copied for that); all others as a `LazyList`, which is rebuilt when it is first looked into.
        verify
            ``manifest``: the manifest's checksum only. ``full``: those of the payload too, which has one for each block of 16
            KiB of a member; with `fields` or `rows`, each block that has a byte of them is fetched whole. ``auto``: like
            ``manifest`` on engines of one host; on those that use a network like ``full`` for the whole batch, and with
            `fields` or `rows` for every range of at least 16 KiB, such as a large slice of rows. Of shorter ranges, such as
            scattered rows, only whole blocks in them are verified, so that no more has to be fetched.

        Returns
        -------
        dict
            Equal to what was put, but where a schema says otherwise. Of a ``dataproto``: its three sections by name, or what
            `data_cls` makes of them.

        Raises
        ------
        RefError
            The reference is damaged, not of this engine, or has no policy version where `max_lag` needs one.
        SelectionError
            There is no such field or row, fields differ in their number of rows, or a buffer doesn't fit.
        StaleRolloutError
            The batch is of an older policy than `max_lag` allows.
        BundleNotFoundError
            The bundle was removed.
        BundleError
            The bundle is damaged, has no checksums to verify, or needs a package or registered class that is missing here.
        UnsupportedValueError
            The bundle has pickled values, and this side doesn't allow them.
        EngineError, MemoryError
            The engine can't do its work, or there is no memory for the result; a message or note names the bundle.
        ValueError
            `type` or `verify` is unknown, or only one of `max_lag` and `current_version` is given.
        """
        engine = self._open_engine(type)
        if verify not in get_args(Verify):
            raise ValueError(f"verify must be one of {', '.join(get_args(Verify))}, not {verify!r}")
        own = self._own(ref)
        if data_cls is not None and type != "dataproto":
            raise ValueError("data_cls is for type='dataproto'")
        if max_lag is not None or current_version is not None:
            check_lag(own, max_lag, current_version)
        request = Request(type, fields, rows, into, data_cls, verify, readonly, lazy, self._allow_pickle)
        with PausedCollector():
            watch = Stopwatch()
            batch = read(engine, own, request, watch)
            if own.readers is not None:
                self._got[id(batch)] = own
            else:
                self._got.pop(id(batch), None)
            self._note("get", own, watch)
            return batch

    @contextmanager
    def borrow(self, ref: Ref, **options: Any) -> Iterator[Batch]:
        """Get a batch, with the options of `get`, for the time of a ``with`` block, and release it at its end."""
        batch = self.get(ref, **options)
        try:
            yield batch
        finally:
            self.release(batch)

    def packed(self, ref: Ref, name: Any, *, rows: RowsLike | None = None, library: Library = "numpy") -> Packed:
        """Read one field as values and cumulative lengths, as variable-length attention kernels take them.

        Parameters
        ----------
        ref
            As for `get`.
        name
            The field: rows of arrays of one dtype that differ in their first axis at most, lists of numbers of one type, one
            array of two or more dimensions, or a jagged nested tensor.
        rows
            As for `get`.
        library
            ``numpy`` or ``torch``: whose arrays come back.

        Returns
        -------
        Packed
            (values, cu_seqlens, max_seqlen). The values are memory of the result's own lease, not copied where the rows are
            one range and no lists of Python numbers, which are given as int64, float64 or bool.

        Raises
        ------
        SelectionError
            The field can't be packed, or there is no such field or row. Otherwise as `get`.
        ValueError
            `library` is another one.
        """
        return packed(self._packable(ref, name, rows, library), library)

    def padded(
        self,
        ref: Ref,
        name: Any,
        *,
        value: Any = 0,
        side: Side = "right",
        to_multiple_of: int = 1,
        rows: RowsLike | None = None,
        library: Library = "numpy",
    ) -> Any:
        """Read one field as an array of shape (rows, longest, ...), filled up with `value` on one side.

        Parameters
        ----------
        ref, name, rows, library
            As for `packed`.
        value
            What to fill up with; a SelectionError where ints can't hold it.
        side
            ``right`` or ``left``: where to fill up.
        to_multiple_of
            The longest row is taken to be as long as the next multiple of this.

        Returns
        -------
        ndarray or Tensor
            Of the dtype that `packed` gives, in memory of its own.

        Raises
        ------
        ValueError
            `side` or `to_multiple_of` makes no sense. Otherwise as `packed`.
        """
        if side not in get_args(Side) or to_multiple_of < 1:
            raise ValueError("side must be right or left, and to_multiple_of at least 1")
        found = self._packable(ref, name, rows, library)
        return padded(found, library, value=value, side=side, to_multiple_of=to_multiple_of)

    def nested(self, ref: Ref, name: Any, *, rows: RowsLike | None = None) -> Any:
        """Read one field as a jagged nested tensor of torch, over the values that `packed` gives; it raises the same."""
        return nested(self._packable(ref, name, rows, "torch"))

    def _packable(self, ref: Ref, name: Any, rows: RowsLike | None, library: Library) -> Any:
        if library not in get_args(Library):
            raise ValueError(f"library must be one of {', '.join(get_args(Library))}, not {library!r}")
        engine, own, watch = self._open_engine(), self._own(ref), Stopwatch()
        request = Request(None, fields=[name], rows=rows, allow_pickle=self._allow_pickle)
        found = read(engine, own, request, watch, make=packed_field)[name]
        self._note("get", own, watch)
        return found

    def release(self, batch: Any) -> None:
        """Empty what `get` gave, so that its memory goes back as soon as no view is left that you kept.

        Where the bundle was put with ``readers=``, this reader is done with it.
        """
        ref = self._got.pop(id(batch), None)
        if isinstance(batch, dict):
            batch.clear()
        else:
            for section in SECTIONS:
                part = getattr(batch, section, None)
                if part is not None:
                    part.clear()
        if ref is not None and not self._closed:
            self.remove(ref)

    def remove(self, ref: Ref, *, force: bool = False) -> bool:
        """Remove a bundle, all of its stages, once all readers are done; results already fetched stay valid.

        Where it was put with ``readers=``, this says that this reader is done; the last one removes it.

        Parameters
        ----------
        ref
            What `put` returned, its dict, or its JSON: it goes with as many older stages as the reference says. Or an id of
            the Ferry's namespace, as `list` gives it, which removes it whoever reads it, and older stages in that namespace.
        force
            Whether to remove it although readers that were asked for are not done.

        Returns
        -------
        bool
            True the first time, False if it was removed, or this reader was done, before.
        """
        engine = self._open_engine()
        if isinstance(ref, str) and ID_PATTERN.fullmatch(ref):
            done = remove_stages(engine, stages_within(engine, self._namespace, ref))
        else:
            own = self._own(ref)
            for number in [number for number, got in list(self._got.items()) if got.id == own.id]:
                self._got.pop(number, None)  # by itself, since another thread may add to them
            if own.readers is not None and not force:
                done = note_done(engine, own, self._reader or f"{self._token}-{os.getpid()}", own.readers)
            else:
                done = remove_stages(engine, stages_of(engine, own))
        self.metrics.count(removes=done)
        return done

    def keep(self, ref: Ref, seconds: float) -> None:
        """Have a bundle live so many seconds from now on, at least, whatever time it was put with.

        Raises
        ------
        BundleNotFoundError
            It is gone.
        """
        check_life(seconds, None)
        keep(self._open_engine(), self._own(ref), seconds)

    def gc(self, *, dry_run: bool = False) -> Sequence[Reclaimed]:
        """Remove the bundles, of all namespaces, whose time is over, and say which they were.

        So are those without a time whose producer, on this machine, has been dead for a day. A dry run removes nothing. Every
        put to an engine without a network does so by the way, every few seconds.
        """
        self._open_engine()
        return self._reclaimer.reclaim(dry_run=dry_run)

    def explain(self, batch: Batch, schema: SchemaLike | None = None) -> Explanation:
        """Say, without putting it, how each field of a batch would be stored, and why. Print the result."""
        self._open_engine()
        encoded = encode_batch(batch, self._schema_for(schema), allow_pickle=self._allow_pickle)
        return explain(encoded, list(batch))

    def infer_schema(self, batch: Batch) -> Schema:
        """Give a schema of what this batch has: layouts, dtypes of arrays, and where None is. It lets fields be absent."""
        self._open_engine()
        encoded = encode_batch(batch, None, allow_pickle=self._allow_pickle)
        return infer_schema(encoded, list(batch))

    async def aput(self, batch: Any, **options: Any) -> TransferRef:
        """Do as `put`, with its options, in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.put, batch, **options)

    async def aappend(self, ref: Ref, fields: Any, **options: Any) -> TransferRef:
        """Do as `append`, with its options, in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.append, ref, fields, **options)

    async def aget(self, ref: Ref, **options: Any) -> Batch:
        """Do as `get`, with its options, in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.get, ref, **options)

    async def aremove(self, ref: Ref) -> bool:
        """Do as `remove` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.remove, ref)

    def list(self) -> list[str]:
        """Give the ids of the bundles in the Ferry's namespace."""
        keys = (key.rpartition(".") for key in self._open_engine().list())
        return [name for namespace, _, name in keys if namespace == self._namespace]

    def usage(self, *, ages: bool | None = None) -> Usage:
        """Say what the engine holds, in all and by namespace.

        Parameters
        ----------
        ages
            Whether to find out how old the oldest bundles are, which takes a look into each bundle not looked into before. By
            default where the engine has no network.
        """
        engine = self._open_engine()
        return self._inventory.usage(ages=not engine.networked if ages is None else ages)

    def bundles(self, namespace: str | None = None) -> Sequence[BundleInfo]:
        """Describe the bundles of all namespaces, or of one, the newest last. It looks into each of them."""
        self._open_engine()
        return self._inventory.bundles(namespace)

    def describe(self, ref: Ref) -> BundleReport:
        """Describe one bundle, and its fields, by its manifest; the payload is not read.

        Parameters
        ----------
        ref
            What `put` returned, its dict, or its JSON; or an id of the Ferry's namespace, as `list` gives it.

        Raises
        ------
        RefError, BundleNotFoundError, BundleError
            As for `get`.
        """
        engine = self._open_engine()
        if isinstance(ref, str) and ID_PATTERN.fullmatch(ref):
            return describe(engine, ref_of(engine, f"{self._namespace}.{ref}"))
        return describe(engine, self._own(ref))

    def close(self) -> None:
        """Let go of the engine. Bundles and results stay; later calls raise FerryClosedError, but for `release`."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Ferry {self._engine.scheme}://, namespace {self._namespace!r}{state}>"

    def _open_engine(self, type: str = "dict") -> Engine:
        if type not in get_args(BatchType):
            raise ValueError(f"type must be one of {', '.join(get_args(BatchType))}, not {type!r}")
        if self._closed:
            raise FerryClosedError("the Ferry is closed; connect again")
        return self._engine

    def _publish(self, engine: Engine, batch: EncodedBatch, terms: Terms, watch: Stopwatch) -> TransferRef:
        try:
            ref = publish(engine, batch, terms, watch)
        except EngineFullError:
            self.metrics.refused(watch)
            raise
        self._note("put", ref, watch)
        return ref

    def _note(self, operation: Literal["put", "get"], ref: TransferRef, watch: Stopwatch) -> None:
        timing = Timing(
            operation=operation,
            id=ref.id,
            nbytes=ref.nbytes,
            rows=ref.rows,
            phases=watch.phases,
            fetched_nbytes=watch.fetched_nbytes,
        )
        self.timings.append(timing)
        self.metrics.finished(timing)

    def _count_reclaimed(self, found: Sequence[Reclaimed]) -> None:
        if found:
            orphans = sum(one.reason != "time" for one in found)
            self.metrics.count(reclaimed=len(found) - orphans, orphans=orphans)

    def _own(self, ref: Ref) -> TransferRef:
        checked = as_ref(ref)
        if checked.engine != self._engine.scheme:
            raise RefError(f"bad reference: it is of {checked.engine}://, this Ferry of {self._engine.scheme}://")
        return checked

    def _schema_for(self, schema: SchemaLike | None) -> Schema | None:
        own = as_schema(schema)
        return Schema({**self._schema, **own}) if self._schema and own else own or self._schema


def nbytes_of(size: int | str | None) -> int | None:
    """Give the bytes of a size, which may be text."""
    return parse_size(size) if isinstance(size, str) else size


def check_life(ttl: float | None, readers: int | None) -> None:
    """Raise ValueError unless a time and a number of readers make sense, or are None."""
    if ttl is not None and not 0 < ttl < 1e9:
        raise ValueError(f"a time to live is a number of seconds above 0, not {ttl!r:.60}")
    if readers is not None and not (type(readers) is int and 1 <= readers <= MAX_READERS):
        raise ValueError(f"readers must be an int of 1 at least, not {readers!r:.60}")

"""The hand-off of a batch between two processes, measured: what ``rollferry bench`` runs.

A producer and a consumer process hand the same batches over in all ways there are on this machine, in turns. Everything
begins in `rollferry.bench.session`; nothing is imported here, since the processes that are measured need little of it.
"""

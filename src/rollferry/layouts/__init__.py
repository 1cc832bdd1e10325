"""One file for each layout: how a column of values becomes typed members, and comes back.

A *column* is a list of values: the rows of a field, a single field value, or what lies at one place of many nested
values. A layout turns a column into a spec and its members; `base` states the contract, `choose` picks the layout,
`encoder` and `decoder` drive them.
"""

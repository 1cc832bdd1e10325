"""The tree layout: nested values taken apart into typed columns, one file for each kind of node."""

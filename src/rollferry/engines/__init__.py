"""Where bundles live. An engine knows bytes under keys, not fields; `base` states the contract."""

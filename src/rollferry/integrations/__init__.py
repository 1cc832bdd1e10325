"""rollferry behind the interfaces of other projects. They use the public API only."""

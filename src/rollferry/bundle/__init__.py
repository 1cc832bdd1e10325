"""A bundle: the payload members of one batch and the manifest that describes them."""

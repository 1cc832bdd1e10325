"""The codecs that a field may be declared with, by Mooncake's names; in rollferry a field is stored as its values are."""

__all__ = ["CODECS"]

CODECS = (
    "auto",
    "ndarray",
    "typed_ragged",
    "ragged_tensor",
    "ragged_tensor_dict",
    "bytes_ragged",
    "media_bytes",
    "media_list_ragged",
    "utf8_ragged",
    "msgpack_ragged",
    "json_ragged",
)
